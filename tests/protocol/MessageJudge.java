import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.record.internal.BaseRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;

/**
 * Reads messages with the classes that Kafka generates of its definitions, and writes them again.
 *
 * Each line of the input is a class, a version and a message in hexadecimal; the line that answers it is the message as
 * Kafka writes it, in hexadecimal, or the word "error" and a text. The line "apis" is answered with what ApiKeys says of
 * every request: number, name, oldest and newest stable version, header versions of the newest request and response.
 */
public class MessageJudge {
    private static final class Accessor extends ByteBufferAccessor {
        Accessor(ByteBuffer buffer) {
            super(buffer);
        }

        @Override
        public void writeRecords(BaseRecords records) {
            writeByteBuffer(((MemoryRecords) records).buffer());
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream output = new PrintStream(System.out, true, "UTF-8");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        String line;
        while ((line = input.readLine()) != null) {
            String answer;
            try {
                answer = line.equals("apis") ? apis() : rewrite(line.split(" ", -1));
            } catch (Throwable error) {
                answer = "error " + error.toString().replace('\n', ' ');
            }
            output.println(answer);
        }
    }

    private static String apis() {
        StringBuilder text = new StringBuilder();
        for (ApiKeys api : ApiKeys.values()) {
            text.append(api.id).append(' ').append(api.name()).append(' ');
            if (api.hasValidVersion()) {
                short newest = api.latestVersion(false);
                text.append(api.oldestVersion()).append(' ').append(newest).append(' ');
                text.append(api.requestHeaderVersion(newest)).append(' ').append(api.responseHeaderVersion(newest));
            }
            text.append(';');
        }
        return text.toString();
    }

    private static String rewrite(String[] words) throws Exception {
        short version = Short.parseShort(words[1]);
        Message message = (Message) Class.forName("org.apache.kafka.common.message." + words[0])
            .getDeclaredConstructor().newInstance();
        Accessor read = new Accessor(ByteBuffer.wrap(HexFormat.of().parseHex(words[2])));
        message.read(read, version);
        if (read.remaining() > 0) {
            return "error " + read.remaining() + " bytes are left over";
        }
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new Accessor(buffer), cache, version);
        if (buffer.hasRemaining()) {
            return "error " + buffer.remaining() + " bytes less than computed were written";
        }
        return HexFormat.of().formatHex(buffer.array());
    }
}
