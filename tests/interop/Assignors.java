import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/**
 * Assigns partitions with the assignors of Kafka. Each line of the input is one of these; "-" stands for nothing:
 *
 * new ASSIGNOR: a new instance; no answer.
 * topic NAME RACKS;RACKS;...: a topic of the next assignment, for each partition the racks of its replicas; no answer.
 * member ID INSTANCE SUBSCRIPTION: a member, its subscription in hexadecimal; the answer is the same subscription as
 *     Kafka writes it.
 * assign: the answer is "MEMBER=ASSIGNMENT" for each member, the assignment in hexadecimal, or "error TEXT".
 * assigned GENERATION ASSIGNMENT: tells another instance of the assignor its assignment; the answer is its user data.
 */
public class Assignors {
    private static final HexFormat HEX = HexFormat.of();

    private static ConsumerPartitionAssignor assignor(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "sticky": return new StickyAssignor();
            case "cooperative-sticky": return new CooperativeStickyAssignor();
            default: throw new IllegalArgumentException(name);
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream output = new PrintStream(System.out, false, "UTF-8");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        String name = "";
        ConsumerPartitionAssignor leader = null;
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, Node> nodes = new HashMap<>();
        Map<String, Subscription> members = new HashMap<>();
        String line;
        while ((line = input.readLine()) != null) {
            String[] words = line.split(" ", -1);
            switch (words[0]) {
                case "new":
                    name = words[1];
                    leader = assignor(name);
                    break;
                case "topic":
                    int number = 0;
                    for (String racks : words[2].split(";", -1)) {
                        List<Node> replicas = new ArrayList<>();
                        for (String rack : racks.split(",", -1))
                            replicas.add(nodes.computeIfAbsent(rack, r ->
                                new Node(nodes.size(), "host", 9092, r.equals("-") ? null : r)));
                        Node[] all = replicas.toArray(new Node[0]);
                        partitions.add(new PartitionInfo(words[1], number++, all[0], all, all));
                    }
                    break;
                case "member":
                    Subscription subscription = ConsumerProtocol.deserializeSubscription(ByteBuffer.wrap(HEX.parseHex(words[3])));
                    subscription.setGroupInstanceId(words[2].equals("-") ? Optional.empty() : Optional.of(words[2]));
                    members.put(words[1], subscription);
                    output.println(hex(ConsumerProtocol.serializeSubscription(subscription)));
                    break;
                case "assign":
                    output.println(assign(leader, partitions, members));
                    partitions = new ArrayList<>();
                    members = new HashMap<>();
                    break;
                case "assigned":
                    ConsumerPartitionAssignor member = assignor(name);
                    Assignment assignment = ConsumerProtocol.deserializeAssignment(ByteBuffer.wrap(HEX.parseHex(words[2])));
                    member.onAssignment(assignment, new ConsumerGroupMetadata("group", Integer.parseInt(words[1]), "member", Optional.empty()));
                    ByteBuffer data = member.subscriptionUserData(Set.of());
                    output.println(data == null ? "-" : hex(data));
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
        output.flush();
    }

    private static String assign(ConsumerPartitionAssignor leader, List<PartitionInfo> partitions, Map<String, Subscription> members) {
        Set<Node> nodes = new HashSet<>();
        partitions.forEach(partition -> nodes.addAll(List.of(partition.replicas())));
        Cluster cluster = new Cluster("cluster", nodes, partitions, Set.of(), Set.of());
        try {
            StringBuilder answer = new StringBuilder();
            Map<String, Assignment> result = leader.assign(cluster, new GroupSubscription(members)).groupAssignment();
            for (Map.Entry<String, Assignment> entry : result.entrySet())
                answer.append(entry.getKey()).append('=').append(hex(ConsumerProtocol.serializeAssignment(entry.getValue()))).append(' ');
            return answer.toString().trim();
        } catch (RuntimeException error) {
            return "error " + error;
        }
    }

    private static String hex(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HEX.formatHex(bytes);
    }
}
