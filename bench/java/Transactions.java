import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Has Kafka's Java producer do what the other clients of the bench do with transactions, and prints what it took as
 * JSON. Transactions of each producer in turn, the producers at the same time, each in a thread. All records of a
 * transaction have one partition. commitTransaction waits for the records, and throws if one has failed.
 */
public class Transactions {
    private final String topic;
    private final int partitions;
    private final int recordsATransaction;
    private final List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
    private final ExecutorService threads;
    private final byte[] value;

    private Transactions(String topic, int partitions, int recordsATransaction, int producers, int valueSize) {
        this.topic = topic;
        this.partitions = partitions;
        this.recordsATransaction = recordsATransaction;
        // An exception in one ends the program: the others must not keep it alive.
        this.threads = Executors.newFixedThreadPool(producers, run -> {
            var thread = new Thread(run);
            thread.setDaemon(true);
            return thread;
        });
        this.value = new byte[valueSize];
        Arrays.fill(value, (byte) 'x');
    }

    private void send(KafkaProducer<byte[], byte[]> producer, int count) {
        for (int number = 0; number < count; number++) {
            producer.beginTransaction();
            for (int record = 0; record < recordsATransaction; record++) {
                producer.send(new ProducerRecord<>(topic, number % partitions, null, value));
            }
            producer.commitTransaction();
        }
    }

    private int sendAll(int records) throws Exception {
        int each = records / recordsATransaction / producers.size();
        List<Future<?>> sending = new ArrayList<>();
        for (KafkaProducer<byte[], byte[]> producer : producers) {
            sending.add(threads.submit(() -> send(producer, each)));
        }
        for (Future<?> one : sending) {
            one.get();
        }
        return each * producers.size();
    }

    /** CPU time of this process with all its threads, in seconds. */
    private static double cpu() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    /** Topic, partitions, records of a transaction, producers, size of a value, warm-up, records, then the settings. */
    public static void main(String[] arguments) throws Exception {
        int[] numbers = new int[7];
        for (int place = 1; place < numbers.length; place++) {
            numbers[place] = Integer.parseInt(arguments[place]);
        }
        var transactions = new Transactions(arguments[0], numbers[1], numbers[2], numbers[3], numbers[4]);
        for (int number = 0; number < numbers[3]; number++) {
            var settings = new Properties();
            for (String setting : Arrays.asList(arguments).subList(numbers.length, arguments.length)) {
                String[] parts = setting.split("=", 2);
                settings.put(parts[0], parts[1]);
            }
            settings.put("transactional.id", arguments[0] + "-" + number);
            var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
            producer.initTransactions();
            transactions.producers.add(producer);
        }
        int warmed = transactions.sendAll(numbers[5]);
        double before = cpu();
        long began = System.nanoTime();
        int ended = transactions.sendAll(numbers[6]);
        double elapsed = (System.nanoTime() - began) / 1e9;
        double used = cpu() - before;
        System.out.printf(
            java.util.Locale.ROOT,
            "{\"transactions\": %d, \"warmed\": %d, \"elapsed\": %f, \"cpu\": %f}%n",
            ended, warmed, elapsed, used);
        for (KafkaProducer<byte[], byte[]> producer : transactions.producers) {
            producer.close();
        }
        transactions.threads.shutdown();
    }
}
