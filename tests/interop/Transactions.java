import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client's part of test_embedded_foreign_transactions.py: arguments are servers, topic, name and four numbers. */
public class Transactions {
    private static String topic;
    private static String name;
    private static int partitions;
    private static int records;

    private static void send(KafkaProducer<byte[], byte[]> producer, String transaction) {
        for (int record = 0; record < records; record++) {
            byte[] value = (name + ":" + transaction + ":" + record).getBytes(StandardCharsets.UTF_8);
            producer.send(new ProducerRecord<>(topic, record % partitions, null, value));
        }
        producer.flush();
    }

    private static KafkaProducer<byte[], byte[]> producer(String servers) {
        Properties config = new Properties();
        config.put("bootstrap.servers", servers);
        config.put("transactional.id", name);
        config.put("linger.ms", "0");
        KafkaProducer<byte[], byte[]> made =
            new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
        made.initTransactions();
        return made;
    }

    private static ConsumerGroupMetadata group(String servers) {
        Properties config = new Properties();
        config.put("bootstrap.servers", servers);
        config.put("group.id", name);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config, bytes, bytes)) {
            return consumer.groupMetadata();
        }
    }

    public static void main(String[] arguments) {
        String servers = arguments[0];
        topic = arguments[1];
        name = arguments[2];
        partitions = Integer.parseInt(arguments[3]);
        records = Integer.parseInt(arguments[4]);
        int transactions = Integer.parseInt(arguments[5]);
        int aborted = Integer.parseInt(arguments[6]);
        ConsumerGroupMetadata group = group(servers);
        KafkaProducer<byte[], byte[]> old = producer(servers);
        for (int number = 0; number < transactions; number++) {
            old.beginTransaction();
            send(old, Integer.toString(number));
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            offsets.put(new TopicPartition(topic, 0), new OffsetAndMetadata(number));
            old.sendOffsetsToTransaction(offsets, group);
            if (number % aborted == aborted - 1) {
                old.abortTransaction();
            } else {
                old.commitTransaction();
            }
        }
        old.beginTransaction();
        send(old, "fenced");
        KafkaProducer<byte[], byte[]> fresh = producer(servers);
        try {
            old.commitTransaction();
            throw new AssertionError("the older producer has committed");
        } catch (ProducerFencedException expected) {
            old.close();
        }
        fresh.beginTransaction();
        send(fresh, "last");
        fresh.commitTransaction();
        fresh.close();
    }
}
