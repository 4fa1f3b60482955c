import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;

/** What producers send: all that a message carries, batches, compression, chunks, encryption, access modes; transactions. */
final class MessagingCases {
    static void add(Map<String, Program.Case> cases) {
        cases.put("message", MessagingCases::message);
        cases.put("batches", MessagingCases::batches);
        cases.put("compression", MessagingCases::compression);
        cases.put("delayed", MessagingCases::delayed);
        cases.put("chunks", MessagingCases::chunks);
        cases.put("too-large", MessagingCases::tooLarge);
        cases.put("encryption", MessagingCases::encryption);
        cases.put("access-modes", MessagingCases::accessModes);
        cases.put("producer-names", MessagingCases::producerNames);
        cases.put("transactions", MessagingCases::transactions);
        cases.put("wrong-names", MessagingCases::wrongNames);
    }

    static Object message(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Exclusive).subscribe();
        try (Producer<byte[]> producer = side.producing().producerName("p").initialSequenceId(41).property("x", "y").create()) {
            producer.newMessage().key("k").orderingKey("o".getBytes()).property("a", "b").eventTime(77).value("v".getBytes()).send();
            producer.newMessage().keyBytes(new byte[] {1, 2}).value(null).send();
            List<Object> seen = new ArrayList<>();
            for (int number = 0; number < 2; number++) {
                Message<byte[]> each = consumer.receive(10, TimeUnit.SECONDS);
                seen.add(Program.map("key", each.getKey(), "b64", each.hasBase64EncodedKey(), "ordering", each.hasOrderingKey(), "properties",
                        new TreeMap<>(each.getProperties()), "event", each.getEventTime(), "producer", each.getProducerName(), "sequence",
                        each.getSequenceId(), "size", each.size(), "null", each.getValue() == null, "replicated", each.isReplicated(),
                        "id", each.getMessageId().getClass().getSimpleName(), "schema", each.getSchemaVersion() != null));
            }
            return Program.map("messages", seen, "last", producer.getLastSequenceId());
        }
    }

    static Object batches(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Exclusive).subscribe();
        try (Producer<byte[]> producer = side.client().newProducer().topic(side.topic()).batchingMaxMessages(10)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            for (int number = 0; number < 25; number++) {
                producer.newMessage().key("" + number).value(("" + number).getBytes()).sendAsync();
            }
            producer.flush();
        }
        return Program.texts(consumer, 25);
    }

    static Object compression(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Exclusive).subscribe();
        Map<String, Object> saw = new TreeMap<>();
        byte[] content = "abc".repeat(10_000).getBytes();
        for (CompressionType type : CompressionType.values()) {
            try (Producer<byte[]> producer = side.producing().compressionType(type).create()) {
                producer.send(content);
            }
            saw.put(type.name(), Arrays.equals(content, consumer.receive(10, TimeUnit.SECONDS).getData()));
        }
        return saw;
    }

    static Object delayed(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Shared).subscribe();
        try (Producer<byte[]> producer = side.producer()) {
            producer.newMessage().deliverAfter(2, TimeUnit.SECONDS).value("late".getBytes()).send();
            producer.send("now".getBytes());
        }
        return Program.texts(consumer, 2);
    }

    static Object chunks(Program.Side side) throws Exception {
        byte[] content = new byte[12 * 1024 * 1024];
        new Random(1).nextBytes(content);
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Exclusive).subscribe();
        String id;
        try (Producer<byte[]> producer = side.producing().enableChunking(true).create()) {
            id = producer.send(content).getClass().getSimpleName();
        }
        Message<byte[]> message = consumer.receive(20, TimeUnit.SECONDS);
        consumer.acknowledge(message);
        return Program.map("sent", id, "received", message.getMessageId().getClass().getSimpleName(), "same", Arrays.equals(content, message.getData()),
                "more", consumer.receive(300, TimeUnit.MILLISECONDS) != null);
    }

    static Object tooLarge(Program.Side side) throws Exception {
        try (Producer<byte[]> producer = side.producer()) {
            String large = Program.failing(() -> producer.send(new byte[5 * 1024 * 1024 + 1]));
            return Program.map("large", large, "after", producer.send(new byte[1]) != null);
        }
    }

    static Object encryption(Program.Side side) throws Exception {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
        generator.initialize(2048);
        KeyPair pair = generator.generateKeyPair();
        Path directory = Files.createTempDirectory("keys");
        String open = pem(directory, "PUBLIC KEY", pair.getPublic().getEncoded());
        String secret = pem(directory, "PRIVATE KEY", pair.getPrivate().getEncoded());
        Consumer<byte[]> consumer = side.consuming("with", SubscriptionType.Exclusive).defaultCryptoKeyReader(secret).subscribe();
        Consumer<byte[]> blind = side.consuming("without", SubscriptionType.Exclusive).subscribe();
        try (Producer<byte[]> producer = side.producing().addEncryptionKey("key").defaultCryptoKeyReader(open).create()) {
            producer.send("secret".getBytes());
        }
        return Program.map("with", Program.texts(consumer, 1), "without", blind.receive(1, TimeUnit.SECONDS) == null);
    }

    static String pem(Path directory, String kind, byte[] encoded) throws Exception {
        String text = "-----BEGIN " + kind + "-----\n" + Base64.getMimeEncoder(64, "\n".getBytes()).encodeToString(encoded) + "\n-----END " + kind + "-----\n";
        return "file:" + Files.writeString(directory.resolve(kind.replace(' ', '-') + ".pem"), text);
    }

    static Object accessModes(Program.Side side) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        Producer<byte[]> exclusive = side.producing().accessMode(ProducerAccessMode.Exclusive).create();
        saw.put("shared", Program.failing(() -> side.producing().create()));
        saw.put("exclusive", Program.failing(() -> side.producing().accessMode(ProducerAccessMode.Exclusive).create()));
        var waiting = side.producing().accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        Thread.sleep(300);
        saw.put("waits", !waiting.isDone());
        exclusive.close();
        Producer<byte[]> waited = waiting.get(10, TimeUnit.SECONDS);
        Producer<byte[]> fencing = side.producing().accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
        saw.put("fenced", Program.failing(() -> waited.send("x".getBytes())));
        saw.put("fencing", fencing.send("y".getBytes()) != null);
        return saw;
    }

    static Object producerNames(Program.Side side) throws Exception {
        try (Producer<byte[]> producer = side.producing().producerName("same").create()) {
            return Program.map("second", Program.failing(() -> side.producing().producerName("same").create()), "name", producer.getProducerName());
        }
    }

    static Object transactions(Program.Side side) throws Exception {
        return Program.failing(() -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(side.serviceUrl()).enableTransaction(true)
                    .operationTimeout(5, TimeUnit.SECONDS).build()) {
                return client.newTransaction().withTransactionTimeout(5, TimeUnit.SECONDS).build().get(10, TimeUnit.SECONDS);
            }
        });
    }

    static Object wrongNames(Program.Side side) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        for (String name : List.of("persistent://public/nowhere/t", "persistent://nobody/default/t", "persistent://public/default/", "bad://a/b/c")) {
            saw.put(name, Program.failing(() -> side.client().newProducer().topic(name).create()));
        }
        return saw;
    }

    private MessagingCases() {}
}
