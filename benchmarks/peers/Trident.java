import java.io.BufferedReader;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Array;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.trident.TridentTopology;
import org.apache.storm.trident.operation.CombinerAggregator;
import org.apache.storm.trident.operation.TridentCollector;
import org.apache.storm.trident.spout.ITridentSpout;
import org.apache.storm.trident.state.OpaqueValue;
import org.apache.storm.trident.state.StateFactory;
import org.apache.storm.trident.state.map.IBackingMap;
import org.apache.storm.trident.state.map.OpaqueMap;
import org.apache.storm.trident.topology.TransactionAttempt;
import org.apache.storm.trident.tuple.TridentTuple;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Values;

/**
 * Storm Trident's side of `script/bench peers`: batches of numbers or of flights, summed up by key into an opaque state
 * in PostgreSQL, one batch pending. Makes a file `begun` when the first batch begins. Arguments: folder of the csv
 * files; files of a batch, 0 for ten numbers; batches; JDBC URL, user, table. The password stands in PGPASSWORD.
 */
public class Trident {
    public static void main(String[] given) throws Exception {
        int files = Integer.parseInt(given[1]);
        int all = Integer.parseInt(given[2]);
        ITridentSpout<Integer> spout = files == 0 ? new Batches(all, given[0]) : new Flights(all, given[0], files);
        String url = given[3];
        String user = given[4];
        String table = given[5];
        StateFactory state = (conf, metrics, partition, partitions) ->
            OpaqueMap.build(new Table(url, user, System.getenv("PGPASSWORD"), table));
        TridentTopology topology = new TridentTopology();
        topology.newStream("batches", spout).parallelismHint(Math.max(files, 1))
            .groupBy(new Fields("key")).persistentAggregate(state, new Fields("value"), new Sum(), new Fields("sum"));
        Config conf = new Config();
        conf.setMaxSpoutPending(1);
        // By default it begins two batches a second.
        conf.put(Config.TOPOLOGY_TRIDENT_BATCH_EMIT_INTERVAL_MILLIS, 1);
        conf.put(Config.TOPOLOGY_EVENTLOGGER_EXECUTORS, 0);
        try (LocalCluster cluster = new LocalCluster()) {
            cluster.submitTopology("peer", conf, topology.build());
            System.in.read(); // until its parent closes it
            Runtime.getRuntime().halt(0);
        }
    }

    /** Ten numbers a batch. */
    static class Batches implements ITridentSpout<Integer> {
        final int all;
        final String folder;

        Batches(int all, String folder) {
            this.all = all;
            this.folder = folder;
        }

        void emit(int batch, int part, int parts, TridentCollector collector) throws Exception {
            for (long number = batch * 10L; number < batch * 10L + 10; number++) {
                collector.emit(new Values(String.valueOf(number % 10), number));
            }
        }

        @Override
        public BatchCoordinator<Integer> getCoordinator(String id, Map<String, Object> conf, TopologyContext context) {
            return new BatchCoordinator<>() {
                @Override
                public Integer initializeTransaction(long txid, Integer previous, Integer current) {
                    if (previous == null) {
                        new File(folder, "begun").mkdir();
                    }
                    return current != null ? current : previous == null ? 0 : previous + 1;
                }

                @Override
                public boolean isReady(long txid) {
                    // Asked of another coordinator than the one that initializes; the first txid is 1.
                    return txid <= all;
                }

                @Override
                public void success(long txid) {}

                @Override
                public void close() {}
            };
        }

        @Override
        public Emitter<Integer> getEmitter(String id, Map<String, Object> conf, TopologyContext context) {
            int parts = context.getComponentTasks(context.getThisComponentId()).size();
            return new Emitter<>() {
                @Override
                public void emitBatch(TransactionAttempt attempt, Integer batch, TridentCollector collector) {
                    try {
                        emit(batch, context.getThisTaskIndex(), parts, collector);
                    } catch (Exception error) {
                        throw new RuntimeException(error);
                    }
                }

                @Override
                public void success(TransactionAttempt attempt) {}

                @Override
                public void close() {}
            };
        }

        @Override
        public Map<String, Object> getComponentConfiguration() {
            return new HashMap<>();
        }

        @Override
        public Fields getOutputFields() {
            return new Fields("key", "value");
        }
    }

    /** Some files a batch, one for each task of the spout. */
    static class Flights extends Batches {
        final int files;

        Flights(int all, String folder, int files) {
            super(all, folder);
            this.files = files;
        }

        @Override
        void emit(int batch, int part, int parts, TridentCollector collector) throws Exception {
            for (int file = part; file < files; file += parts) {
                Path path = Path.of(folder, String.format("%05d-%d.csv", batch, file));
                try (BufferedReader lines = Files.newBufferedReader(path)) {
                    lines.readLine();
                    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                        int delay = skip(line, 0, 5);
                        int carrier = skip(line, delay, 4);
                        int origin = skip(line, carrier, 3);
                        String key = line.substring(carrier, line.indexOf(',', carrier)) + '-'
                            + line.substring(origin, line.indexOf(',', origin));
                        String value = line.substring(delay, line.indexOf(',', delay));
                        collector.emit(new Values(key, value.equals("NA") ? 0L : Long.parseLong(value)));
                    }
                }
            }
        }

        private static int skip(String line, int from, int fields) {
            int at = from;
            for (int field = 0; field < fields; field++) {
                at = line.indexOf(',', at) + 1;
            }
            return at;
        }
    }

    /** How many values, and their sum. */
    static class Sum implements CombinerAggregator<long[]> {
        @Override
        public long[] init(TridentTuple tuple) {
            return new long[] {1, tuple.getLong(0)};
        }

        @Override
        public long[] combine(long[] one, long[] other) {
            return new long[] {one[0] + other[0], one[1] + other[1]};
        }

        @Override
        public long[] zero() {
            return new long[] {0, 0};
        }
    }

    /** A table with the value of each key, the one before it, and the txid that wrote it; a statement a batch. */
    static class Table implements IBackingMap<OpaqueValue> {
        private final Connection connection;
        private final PreparedStatement select;
        private final PreparedStatement upsert;

        Table(String url, String user, String password, String table) {
            try {
                connection = DriverManager.getConnection(url, user, password);
                select = connection.prepareStatement(
                    "SELECT key, txid, n, total, previous_n, previous_total FROM " + table + " WHERE key = ANY(?)");
                upsert = connection.prepareStatement("INSERT INTO " + table
                    + " (key, txid, n, total, previous_n, previous_total) SELECT * FROM unnest(?, ?, ?, ?, ?, ?)"
                    + " ON CONFLICT (key) DO UPDATE SET txid = excluded.txid, n = excluded.n, total = excluded.total,"
                    + " previous_n = excluded.previous_n, previous_total = excluded.previous_total");
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        }

        @Override
        public List<OpaqueValue> multiGet(List<List<Object>> keys) {
            Map<String, OpaqueValue> found = new HashMap<>();
            try {
                select.setArray(1, array("text", keys.stream().map(key -> key.get(0)).toArray()));
                try (ResultSet rows = select.executeQuery()) {
                    while (rows.next()) {
                        long[] before = rows.getObject(5) == null ? null : new long[] {rows.getLong(5), rows.getLong(6)};
                        long[] now = {rows.getLong(3), rows.getLong(4)};
                        found.put(rows.getString(1), new OpaqueValue<>(rows.getLong(2), now, before));
                    }
                }
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
            List<OpaqueValue> values = new ArrayList<>();
            keys.forEach(key -> values.add(found.get((String) key.get(0))));
            return values;
        }

        @Override
        public void multiPut(List<List<Object>> keys, List<OpaqueValue> values) {
            try {
                upsert.setArray(1, array("text", keys.stream().map(key -> key.get(0)).toArray()));
                upsert.setArray(2, array("bigint", values.stream().map(OpaqueValue::getCurrTxid).toArray()));
                IntStream.range(0, 4).forEach(column -> set(column, values));
                upsert.executeUpdate();
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        }

        private void set(int column, List<OpaqueValue> values) {
            Object[] numbers = values.stream().map(value -> {
                long[] which = (long[]) (column < 2 ? value.getCurr() : value.getPrev());
                return which == null ? null : (Object) which[column % 2];
            }).toArray();
            try {
                upsert.setArray(3 + column, array("bigint", numbers));
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        }

        private Array array(String type, Object[] elements) throws Exception {
            return connection.createArrayOf(type, elements);
        }
    }
}
