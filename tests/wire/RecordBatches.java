import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.AbstractRecords;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.Utils;

/** Kafka's own record batches for the tests: one command a line on stdin, one line of answer each on stdout. Null is "-", bytes are hex. */
public class RecordBatches {
    static final HexFormat HEX = HexFormat.of();

    static String hex(ByteBuffer buffer) {
        if (buffer == null) return "-";
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HEX.formatHex(bytes);
    }

    static byte[] bytes(String hex) {
        return hex.equals("-") ? null : HEX.parseHex(hex);
    }

    static Compression compression(String name, String level) {
        if (level.equals("-")) return Compression.of(name).build();
        int number = Integer.parseInt(level);
        return switch (name) {
            case "gzip" -> Compression.gzip().level(number).build();
            case "lz4" -> Compression.lz4().level(number).build();
            case "zstd" -> Compression.zstd().level(number).build();
            default -> throw new IllegalArgumentException(name);
        };
    }

    static String read(byte[] data) {
        StringBuilder out = new StringBuilder();
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            batch.ensureValid();
            out.append(String.join(" ", "batch", "" + batch.baseOffset(), "" + batch.lastOffset(),
                "" + batch.partitionLeaderEpoch(), "" + batch.magic(), batch.compressionType().name,
                "" + batch.timestampType().id, "" + batch.maxTimestamp(), "" + batch.producerId(),
                "" + batch.producerEpoch(), "" + batch.baseSequence(), "" + batch.lastSequence(),
                "" + batch.countOrNull(), "" + batch.isTransactional(), "" + batch.isControlBatch())).append(';');
            for (Record record : batch) {
                record.ensureValid();
                if (batch.isControlBatch()) {
                    EndTransactionMarker marker = EndTransactionMarker.deserialize(record);
                    out.append("marker " + marker.controlType() + " " + marker.coordinatorEpoch() + ";");
                    continue;
                }
                out.append("record " + record.offset() + " " + record.timestamp() + " " + hex(record.key()) + " "
                    + hex(record.value()));
                for (Header header : record.headers()) {
                    byte[] value = header.value();
                    out.append(" " + HEX.formatHex(header.key().getBytes(StandardCharsets.UTF_8)) + "="
                        + (value == null ? "-" : HEX.formatHex(value)));
                }
                out.append(';');
            }
        }
        return out.toString();
    }

    static String write(String[] words) {
        // write CODEC LEVEL TIMESTAMP_TYPE RECORD...; TIMESTAMP_TYPE is CREATE_TIME or LOG_APPEND_TIME, a record is TIMESTAMP,KEY,VALUE[,HEADER=VALUE]...
        ByteBuffer buffer = ByteBuffer.allocate(1 << 20);
        MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, (byte) 2, compression(words[1], words[2]),
            TimestampType.valueOf(words[3]), 1000L, 1700000009999L, 77L, (short) 5, 2147483646, true, 9);
        for (int i = 4; i < words.length; i++) {
            String[] parts = words[i].split(",", -1);
            Header[] headers = new Header[parts.length - 3];
            for (int j = 3; j < parts.length; j++) {
                String[] pair = parts[j].split("=", -1);
                headers[j - 3] = new RecordHeader(new String(bytes(pair[0]), StandardCharsets.UTF_8), bytes(pair[1]));
            }
            builder.append(Long.parseLong(parts[0]), bytes(parts[1]), bytes(parts[2]), headers);
        }
        return hex(builder.build().buffer());
    }

    static String answer(String line) {
        String[] words = line.split(" ");
        switch (words[0]) {
            case "murmur2":
                return "" + Utils.murmur2(words.length == 1 ? new byte[0] : bytes(words[1]));
            case "read":
                return read(bytes(words[1]));
            case "write":
                return write(words);
            case "marker":
                return hex(MemoryRecords.withEndTransactionMarker(Long.parseLong(words[1]), Long.parseLong(words[2]),
                    Integer.parseInt(words[3]), Long.parseLong(words[4]), Short.parseShort(words[5]),
                    new EndTransactionMarker(ControlRecordType.valueOf(words[6]), Integer.parseInt(words[7]))).buffer());
            case "bound":
                byte[] key = words[1].equals("-") ? null : new byte[Integer.parseInt(words[1])];
                byte[] value = words[2].equals("-") ? null : new byte[Integer.parseInt(words[2])];
                return "" + AbstractRecords.estimateSizeInBytesUpperBound((byte) 2, CompressionType.NONE, key, value,
                    new Header[] {new RecordHeader("h\u00e9", new byte[3]), new RecordHeader("none", (byte[]) null)});
            default:
                throw new IllegalArgumentException(line);
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.US_ASCII);
        for (String line = in.readLine(); line != null; line = in.readLine()) out.println(answer(line));
    }
}
