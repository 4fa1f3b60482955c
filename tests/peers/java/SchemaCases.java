import com.google.protobuf.Timestamp;
import java.sql.Time;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/** Schemas of every kind: what is written is read; what does not fit is refused. */
final class SchemaCases {
    static void add(Map<String, Program.Case> cases) {
        cases.put("primitives", SchemaCases::primitives);
        cases.put("avro", side -> records(side, Schema.AVRO(First.class), Schema.AVRO(Second.class), Schema.AVRO(Other.class)));
        cases.put("json", side -> records(side, Schema.JSON(First.class), Schema.JSON(Second.class), Schema.JSON(Other.class)));
        cases.put("protobuf", side -> protobuf(side, Schema.PROTOBUF(Timestamp.class)));
        cases.put("protobuf-native", side -> protobuf(side, Schema.PROTOBUF_NATIVE(Timestamp.class)));
        cases.put("key-value", SchemaCases::keyValue);
        cases.put("auto-consume", SchemaCases::autoConsume);
        cases.put("auto-produce", SchemaCases::autoProduce);
        cases.put("another-schema", SchemaCases::another);
    }

    public static final class First {
        public String name;
        public int age;
    }

    public static final class Second {
        public String name;
        public int age;
        public String town;
    }

    public static final class Other {
        public double name;
    }

    static <T> Object roundTrip(Program.Side side, Schema<T> schema, T value) throws Exception {
        String topic = side.topic() + "-" + schema.getSchemaInfo().getType().name().toLowerCase().replace('_', '-');
        try (Consumer<T> consumer = side.client().newConsumer(schema).topic(topic).subscriptionName("sub").subscribe();
                Producer<T> producer = side.client().newProducer(schema).topic(topic).create()) {
            producer.send(value);
            Message<T> message = consumer.receive(10, TimeUnit.SECONDS);
            return message.getValue().equals(value);
        }
    }

    static Object primitives(Program.Side side) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        saw.put("STRING", roundTrip(side, Schema.STRING, "é"));
        saw.put("BOOL", roundTrip(side, Schema.BOOL, true));
        saw.put("INT8", roundTrip(side, Schema.INT8, (byte) -3));
        saw.put("INT16", roundTrip(side, Schema.INT16, (short) 300));
        saw.put("INT32", roundTrip(side, Schema.INT32, 70_000));
        saw.put("INT64", roundTrip(side, Schema.INT64, 5_000_000_000L));
        saw.put("FLOAT", roundTrip(side, Schema.FLOAT, 1.5f));
        saw.put("DOUBLE", roundTrip(side, Schema.DOUBLE, 2.5));
        saw.put("DATE", roundTrip(side, Schema.DATE, new Date(1_000)));
        saw.put("TIME", roundTrip(side, Schema.TIME, new Time(1_000)));
        saw.put("INSTANT", roundTrip(side, Schema.INSTANT, Instant.ofEpochSecond(5)));
        saw.put("LOCAL_DATE", roundTrip(side, Schema.LOCAL_DATE, LocalDate.of(2020, 1, 2)));
        saw.put("LOCAL_TIME", roundTrip(side, Schema.LOCAL_TIME, LocalTime.of(1, 2)));
        saw.put("LOCAL_DATE_TIME", roundTrip(side, Schema.LOCAL_DATE_TIME, LocalDateTime.of(2020, 1, 2, 3, 4)));
        return saw;
    }

    static Object records(Program.Side side, Schema<First> first, Schema<Second> second, Schema<Other> other) throws Exception {
        First value = new First();
        value.name = "Ann";
        value.age = 7;
        Second evolved = new Second();
        evolved.name = "Bob";
        evolved.age = 8;
        evolved.town = "Rome";
        Consumer<Second> consumer = side.consuming(second, "sub", SubscriptionType.Exclusive).subscribe();
        List<Object> got = new ArrayList<>();
        try (Producer<First> producer = side.client().newProducer(first).topic(side.topic()).create()) {
            producer.send(value);
        }
        try (Producer<Second> producer = side.client().newProducer(second).topic(side.topic()).create()) {
            producer.send(evolved);
        }
        for (int number = 0; number < 2; number++) {
            Second each = consumer.receive(10, TimeUnit.SECONDS).getValue();
            got.add(each.name + " " + each.age + " " + each.town);
        }
        return Program.map("got", got, "wrong producer", Program.failing(() -> side.client().newProducer(other).topic(side.topic()).create()),
                "wrong consumer", Program.failing(() -> side.consuming(other, "other", SubscriptionType.Exclusive).subscribe()));
    }

    static Object protobuf(Program.Side side, Schema<Timestamp> schema) throws Exception {
        return roundTrip(side, schema, Timestamp.newBuilder().setSeconds(5).build());
    }

    static Object keyValue(Program.Side side) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        for (KeyValueEncodingType type : KeyValueEncodingType.values()) {
            Schema<KeyValue<String, First>> schema = Schema.KeyValue(Schema.STRING, Schema.AVRO(First.class), type);
            String topic = side.topic() + "-" + type;
            try (Consumer<KeyValue<String, First>> consumer = side.client().newConsumer(schema).topic(topic).subscriptionName("sub").subscribe();
                    Producer<KeyValue<String, First>> producer = side.client().newProducer(schema).topic(topic).create()) {
                First value = new First();
                value.name = "Ann";
                producer.send(new KeyValue<>("key", value));
                Message<KeyValue<String, First>> message = consumer.receive(10, TimeUnit.SECONDS);
                saw.put(type.name(), message.getValue().getKey() + " " + message.getValue().getValue().name + " " + message.getKey());
            }
        }
        return saw;
    }

    static Object autoConsume(Program.Side side) throws Exception {
        Consumer<GenericRecord> consumer = side.consuming(Schema.AUTO_CONSUME(), "sub", SubscriptionType.Exclusive).subscribe();
        List<Object> got = new ArrayList<>();
        First first = new First();
        first.name = "Ann";
        Second second = new Second();
        second.town = "Rome";
        try (Producer<First> producer = side.client().newProducer(Schema.AVRO(First.class)).topic(side.topic()).create()) {
            producer.send(first);
        }
        try (Producer<Second> producer = side.client().newProducer(Schema.AVRO(Second.class)).topic(side.topic()).create()) {
            producer.send(second);
        }
        for (int number = 0; number < 2; number++) {
            GenericRecord record = consumer.receive(10, TimeUnit.SECONDS).getValue();
            Map<String, Object> fields = new TreeMap<>();
            record.getFields().forEach(field -> fields.put(field.getName(), String.valueOf(record.getField(field))));
            got.add(Program.map("type", record.getSchemaType().name(), "fields", fields));
        }
        return got;
    }

    static Object autoProduce(Program.Side side) throws Exception {
        Consumer<First> consumer = side.consuming(Schema.AVRO(First.class), "sub", SubscriptionType.Exclusive).subscribe();
        First value = new First();
        value.name = "Ann";
        try (Producer<byte[]> producer = side.client().newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(side.topic()).create()) {
            producer.send(Schema.AVRO(First.class).encode(value));
            return Program.map("name", consumer.receive(10, TimeUnit.SECONDS).getValue().name, "wrong",
                    Program.failing(() -> producer.send(new byte[] {(byte) 0xff})));
        }
    }

    static Object another(Program.Side side) throws Exception {
        side.client().newProducer(Schema.STRING).topic(side.topic()).create().close();
        Map<String, Object> saw = new TreeMap<>();
        saw.put("int producer", Program.failing(() -> side.client().newProducer(Schema.INT32).topic(side.topic()).create()));
        saw.put("int consumer", Program.failing(() -> side.consuming(Schema.INT32, "i", SubscriptionType.Exclusive).subscribe()));
        saw.put("bytes producer", Program.failing(() -> side.client().newProducer(Schema.BYTES).topic(side.topic()).create()));
        saw.put("bytes consumer", Program.failing(() -> side.consuming(Schema.BYTES, "b", SubscriptionType.Exclusive).subscribe()));
        return saw;
    }

    private SchemaCases() {}
}
