import java.io.FileInputStream;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What Kafka's producer says of its configuration, a JSON object per line. "keys": every key; "entries FILE...": the
 * entries of properties files; "values FILE...": some values of the producer with these properties, or its error;
 * "jaas FILE...": what it makes of the text as sasl.jaas.config; "clients": the keys that only its consumer has, and only
 * its admin client.
 */
public class ConfigFacts {
    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("keys")) {
            for (ConfigDef.ConfigKey key : new TreeMap<>(ProducerConfig.configDef().configKeys()).values()) {
                Object value = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE ? "<required>" : key.defaultValue;
                System.out.println(object(
                    "name", key.name, "type", key.type.toString(), "default", value, "validator",
                    key.validator == null ? null : key.validator.toString(), "importance", key.importance.toString(),
                    "internal", key.internalConfig));
            }
            return;
        }
        if (arguments[0].equals("clients")) {
            System.out.println(beyondTheProducer(ConsumerConfig.configNames()));
            System.out.println(beyondTheProducer(AdminClientConfig.configNames()));
            return;
        }
        for (int i = 1; i < arguments.length; i++) {
            if (arguments[0].equals("jaas")) {
                System.out.println(jaas(Files.readString(Path.of(arguments[i]))));
                continue;
            }
            Properties properties = new Properties();
            try (FileInputStream file = new FileInputStream(arguments[i])) {
                properties.load(file);
            }
            System.out.println(arguments[0].equals("entries") ? entries(properties) : values(properties));
        }
    }

    private static String beyondTheProducer(Set<String> names) {
        Map<String, Object> others = new TreeMap<>();
        names.forEach(name -> others.put(name, true));
        others.keySet().removeAll(ProducerConfig.configNames());
        return object(flat(others));
    }

    private static String jaas(String text) {
        try {
            List<AppConfigurationEntry> entries = JaasContext
                .loadClientContext(Map.of("sasl.jaas.config", new Password(text))).configurationEntries();
            Map<String, Object> options = new HashMap<>(entries.get(0).getOptions());
            return object("module", entries.get(0).getLoginModuleName(), "options", Arrays.asList(flat(options)));
        } catch (IllegalArgumentException error) {
            return object("error", String.valueOf(error.getMessage()));
        }
    }

    private static Object[] flat(Map<String, Object> entries) {
        return entries.entrySet().stream()
            .flatMap(entry -> java.util.stream.Stream.of(entry.getKey(), entry.getValue())).toArray();
    }

    private static String entries(Properties properties) {
        Object[] flat = new TreeMap<>(properties).entrySet().stream()
            .flatMap(entry -> java.util.stream.Stream.of(entry.getKey(), entry.getValue())).toArray();
        return object(flat);
    }

    private static String values(Properties properties) throws Exception {
        Map<String, Object> given = new HashMap<>();
        properties.forEach((key, value) -> given.put((String) key, value));
        String serializer = "org.apache.kafka.common.serialization.ByteArraySerializer";
        given.put("key.serializer", serializer);
        given.put("value.serializer", serializer);
        try {
            ProducerConfig config = new ProducerConfig(given);
            Method delivery = KafkaProducer.class
                .getDeclaredMethod("configureDeliveryTimeout", ProducerConfig.class, Logger.class);
            delivery.setAccessible(true);
            Object timeout = delivery.invoke(null, config, LoggerFactory.getLogger("facts"));
            return object(
                "acks", Integer.parseInt(config.getString("acks")),
                "enable.idempotence", config.getBoolean("enable.idempotence"),
                "retries", config.getInt("retries"),
                "reconnect.backoff.max.ms", config.getLong("reconnect.backoff.max.ms"),
                "bootstrap.servers", config.getList("bootstrap.servers"),
                "delivery.timeout.ms", timeout);
        } catch (Exception error) {
            return object("error", String.valueOf((error.getCause() == null ? error : error.getCause()).getMessage()));
        }
    }

    private static String object(Object... flat) {
        StringBuilder text = new StringBuilder("{");
        for (int i = 0; i < flat.length; i += 2) {
            text.append(i == 0 ? "" : ", ").append(json(flat[i])).append(": ").append(json(flat[i + 1]));
        }
        return text.append("}").toString();
    }

    private static String json(Object value) {
        if (value == null || value instanceof Boolean || value instanceof Number) {
            return String.valueOf(value);
        }
        if (value instanceof List) {
            StringBuilder text = new StringBuilder("[");
            for (Object item : (List<?>) value) {
                text.append(text.length() == 1 ? "" : ", ").append(json(item));
            }
            return text.append("]").toString();
        }
        StringBuilder text = new StringBuilder("\"");
        for (char c : (value instanceof Class ? ((Class<?>) value).getName() : value.toString()).toCharArray()) {
            text.append(c < 32 || c > 126 || c == '"' || c == '\\' ? String.format("\\u%04x", (int) c) : String.valueOf(c));
        }
        return text.append("\"").toString();
    }
}
