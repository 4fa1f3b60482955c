import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;

/** Every type of subscription, what comes again, dead letters, retries, readers, table views, patterns. */
final class SubscriptionCases {
    static void add(Map<String, Program.Case> cases) {
        cases.put("exclusive", SubscriptionCases::exclusive);
        cases.put("failover", SubscriptionCases::failover);
        cases.put("shared", SubscriptionCases::shared);
        cases.put("other-type", SubscriptionCases::otherType);
        cases.put("key-shared-auto-split", SubscriptionCases::autoSplit);
        cases.put("key-shared-sticky", SubscriptionCases::sticky);
        cases.put("cumulative-ack", SubscriptionCases::cumulative);
        cases.put("batch-index-ack", SubscriptionCases::batchIndex);
        cases.put("negative-ack", SubscriptionCases::negative);
        cases.put("ack-timeout", SubscriptionCases::ackTimeout);
        cases.put("dead-letter", SubscriptionCases::deadLetter);
        cases.put("retry-topic", SubscriptionCases::retryTopic);
        cases.put("seek", SubscriptionCases::seek);
        cases.put("unsubscribe", SubscriptionCases::unsubscribe);
        cases.put("reader", SubscriptionCases::reader);
        cases.put("table-view", SubscriptionCases::tableView);
        cases.put("regex", SubscriptionCases::regex);
        cases.put("partitioned", SubscriptionCases::partitioned);
        cases.put("terminated", SubscriptionCases::terminated);
        cases.put("non-durable", SubscriptionCases::nonDurable);
    }

    static void send(Program.Side side, String... texts) throws Exception {
        try (Producer<byte[]> producer = side.producer()) {
            for (String text : texts) {
                producer.send(text.getBytes());
            }
        }
    }

    static Object exclusive(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Exclusive).subscribe();
        send(side, "a", "b", "c");
        Set<String> got = different(consumer, 2);
        consumer.close();
        Consumer<byte[]> again = side.consuming("sub", SubscriptionType.Exclusive).subscribe();
        Set<String> left = different(again, 1);
        String second = Program.failing(() -> side.consuming("sub", SubscriptionType.Exclusive).subscribe());
        return Program.map("second", second, "got", got, "left", left);
    }

    /** The next texts, acknowledged. A broker may send a message twice to a consumer that has just come, or when another is turned away. */
    static Set<String> different(Consumer<byte[]> consumer, int count) throws Exception {
        Set<String> texts = new LinkedHashSet<>();
        while (texts.size() < count) {
            texts.addAll(Program.texts(consumer, 1));
        }
        return texts;
    }

    static Object failover(Program.Side side) throws Exception {
        Consumer<byte[]> first = side.consuming("sub", SubscriptionType.Failover).consumerName("a").subscribe();
        Consumer<byte[]> second = side.consuming("sub", SubscriptionType.Failover).consumerName("b").subscribe();
        send(side, "1", "2", "3");
        List<String> got = Program.texts(first, 2);
        boolean idle = second.receive(500, TimeUnit.MILLISECONDS) == null;
        first.close();
        return Program.map("first", got, "idle", idle, "second", Program.texts(second, 1));
    }

    static Object shared(Program.Side side) throws Exception {
        Consumer<byte[]> first = side.consuming("sub", SubscriptionType.Shared).receiverQueueSize(1).subscribe();
        Consumer<byte[]> second = side.consuming("sub", SubscriptionType.Shared).receiverQueueSize(1).subscribe();
        send(side, "1", "2", "3", "4", "5", "6");
        TreeSet<String> got = new TreeSet<>();
        got.addAll(Program.texts(first, 2));
        got.addAll(Program.texts(second, 2));
        first.close();
        got.addAll(Program.texts(second, 2));
        String cumulative = Program.failing(() -> {
            second.acknowledgeCumulative(MessageId.earliest);
            return null;
        });
        return Program.map("got", got, "cumulative", cumulative);
    }

    static Object otherType(Program.Side side) throws Exception {
        side.consuming("sub", SubscriptionType.Shared).subscribe();
        Map<String, Object> errors = new TreeMap<>();
        for (SubscriptionType type : SubscriptionType.values()) {
            errors.put(type.name(), Program.failing(() -> side.consuming("sub", type).subscribe()));
        }
        return errors;
    }

    static Object autoSplit(Program.Side side) throws Exception {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            consumers.add(side.consuming("sub", SubscriptionType.Key_Shared).consumerName("c" + number).subscribe());
        }
        sendKeyed(side, 60);
        Map<String, TreeSet<Integer>> owners = new TreeMap<>();
        Map<String, List<String>> order = new TreeMap<>();
        int got = receiveByKey(consumers, 60, owners, order);
        boolean one = owners.values().stream().allMatch(each -> each.size() == 1);
        return Program.map("got", got, "one consumer a key", one, "order", order);
    }

    static Object sticky(Program.Side side) throws Exception {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            Range range = Range.of(number * 32768, number * 32768 + 32767);
            consumers.add(side.consuming("sub", SubscriptionType.Key_Shared)
                    .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(range)).subscribe());
        }
        String overlapping = Program.failing(() -> side.consuming("sub", SubscriptionType.Key_Shared)
                .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(5, 10))).subscribe());
        sendKeyed(side, 40);
        Map<String, TreeSet<Integer>> owners = new TreeMap<>();
        Map<String, List<String>> order = new TreeMap<>();
        int got = receiveByKey(consumers, 40, owners, order);
        return Program.map("got", got, "owners", owners, "order", order, "overlapping", overlapping);
    }

    static void sendKeyed(Program.Side side, int count) throws Exception {
        try (Producer<byte[]> producer = side.producer()) {
            for (int number = 0; number < count; number++) {
                producer.newMessage().key("key-" + number % 10).value(("" + number).getBytes()).send();
            }
        }
    }

    static int receiveByKey(List<Consumer<byte[]>> consumers, int count, Map<String, TreeSet<Integer>> owners, Map<String, List<String>> order)
            throws Exception {
        int got = 0;
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(15);
        while (got < count && System.nanoTime() < deadline) {
            for (int number = 0; number < consumers.size(); number++) {
                Message<byte[]> message = consumers.get(number).receive(20, TimeUnit.MILLISECONDS);
                if (message != null) {
                    owners.computeIfAbsent(message.getKey(), key -> new TreeSet<>()).add(number);
                    order.computeIfAbsent(message.getKey(), key -> new ArrayList<>()).add(Program.text(message));
                    consumers.get(number).acknowledge(message);
                    got++;
                }
            }
        }
        return got;
    }

    static Object cumulative(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Exclusive).subscribe();
        send(side, "1", "2", "3", "4");
        consumer.receive();
        consumer.receive();
        consumer.acknowledgeCumulative(consumer.receive());
        consumer.close();
        return Program.texts(side.consuming("sub", SubscriptionType.Exclusive).subscribe(), 1);
    }

    static Object batchIndex(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Shared).enableBatchIndexAcknowledgment(true).subscribe();
        try (Producer<byte[]> producer = side.client().newProducer().topic(side.topic()).batchingMaxMessages(4)
                .batchingMaxPublishDelay(5, TimeUnit.SECONDS).create()) {
            for (int number = 0; number < 4; number++) {
                producer.sendAsync(("" + number).getBytes());
            }
            producer.flush();
        }
        List<String> ids = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            Message<byte[]> message = consumer.receive();
            ids.add(message.getMessageId().getClass().getSimpleName());
            if (number % 2 == 1) {
                consumer.acknowledge(message);
            }
        }
        consumer.close();
        Consumer<byte[]> again = side.consuming("sub", SubscriptionType.Shared).enableBatchIndexAcknowledgment(true).subscribe();
        return Program.map("ids", ids, "left", Program.texts(again, 2), "more", again.receive(300, TimeUnit.MILLISECONDS) != null);
    }

    static Object negative(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Shared).negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS).subscribe();
        send(side, "a");
        List<Integer> counts = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            Message<byte[]> message = consumer.receive(10, TimeUnit.SECONDS);
            counts.add(message.getRedeliveryCount());
            consumer.negativeAcknowledge(message);
        }
        return counts;
    }

    static Object ackTimeout(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Shared).ackTimeout(1, TimeUnit.SECONDS).subscribe();
        send(side, "a");
        consumer.receive();
        Message<byte[]> again = consumer.receive(10, TimeUnit.SECONDS);
        return Program.map("text", Program.text(again), "count", again.getRedeliveryCount());
    }

    static Object deadLetter(Program.Side side) throws Exception {
        Consumer<byte[]> letters = side.client().newConsumer().topic(side.topic() + "-sub-DLQ").subscriptionName("all").subscribe();
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Shared).negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe();
        send(side, "bad");
        int seen = 0;
        Message<byte[]> message;
        while ((message = consumer.receive(2, TimeUnit.SECONDS)) != null) {
            seen++;
            consumer.negativeAcknowledge(message);
        }
        Message<byte[]> letter = letters.receive(10, TimeUnit.SECONDS);
        return Program.map("seen", seen, "letter", Program.text(letter), "properties", new TreeSet<>(letter.getProperties().keySet()));
    }

    static Object retryTopic(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Shared).enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe();
        Consumer<byte[]> letters = side.client().newConsumer().topic(side.topic() + "-sub-DLQ").subscriptionName("all").subscribe();
        send(side, "later");
        List<String> retries = new ArrayList<>();
        Message<byte[]> message;
        while ((message = consumer.receive(3, TimeUnit.SECONDS)) != null) {
            retries.add(message.getProperty("RECONSUMETIMES"));
            consumer.reconsumeLater(message, 100, TimeUnit.MILLISECONDS);
        }
        return Program.map("retries", retries, "letter", Program.text(letters.receive(10, TimeUnit.SECONDS)));
    }

    static Object seek(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Exclusive).subscribe();
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer = side.producer()) {
            for (int number = 0; number < 5; number++) {
                ids.add(producer.send(("" + number).getBytes()));
            }
        }
        List<String> all = Program.texts(consumer, 5);
        consumer.seek(ids.get(2));
        List<String> after = Program.texts(consumer, 2);
        consumer.seek(MessageId.earliest);
        List<String> earliest = Program.texts(consumer, 1);
        consumer.seek(System.currentTimeMillis() + 10_000);
        boolean none = consumer.receive(500, TimeUnit.MILLISECONDS) == null;
        return Program.map("all", all, "after", after, "earliest", earliest, "none", none);
    }

    static Object unsubscribe(Program.Side side) throws Exception {
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Shared).subscribe();
        Consumer<byte[]> second = side.consuming("sub", SubscriptionType.Shared).subscribe();
        String busy = Program.failing(() -> {
            consumer.unsubscribe();
            return null;
        });
        second.close();
        consumer.unsubscribe();
        return Program.map("busy", busy, "after", Program.failing(() -> consumer.receive(1, TimeUnit.SECONDS)));
    }

    static Object reader(Program.Side side) throws Exception {
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer = side.producer()) {
            for (int number = 0; number < 4; number++) {
                ids.add(producer.send(("" + number).getBytes()));
            }
        }
        Map<String, Object> saw = new TreeMap<>();
        try (Reader<byte[]> reader = side.client().newReader().topic(side.topic()).startMessageId(MessageId.earliest).create()) {
            List<String> texts = new ArrayList<>();
            while (reader.hasMessageAvailable()) {
                texts.add(Program.text(reader.readNext()));
            }
            saw.put("earliest", texts);
            reader.seek(ids.get(1));
            saw.put("sought", Program.text(reader.readNext()));
            saw.put("end", reader.hasReachedEndOfTopic());
        }
        try (Reader<byte[]> reader = side.client().newReader().topic(side.topic()).startMessageId(ids.get(1)).create()) {
            saw.put("after", Program.text(reader.readNext()));
        }
        try (Reader<byte[]> reader = side.client().newReader().topic(side.topic()).startMessageId(ids.get(1)).startMessageIdInclusive().create()) {
            saw.put("inclusive", Program.text(reader.readNext()));
        }
        try (Reader<byte[]> reader = side.client().newReader().topic(side.topic()).startMessageId(MessageId.latest).create()) {
            saw.put("latest", reader.hasMessageAvailable());
        }
        try (Reader<byte[]> reader = side.client().newReader().topic(side.topic()).startMessageId(MessageId.latest).startMessageIdInclusive().create()) {
            saw.put("last", reader.hasMessageAvailable() ? Program.text(reader.readNext()) : null);
        }
        return saw;
    }

    static Object tableView(Program.Side side) throws Exception {
        try (Producer<String> producer = side.client().newProducer(Schema.STRING).topic(side.topic()).create()) {
            producer.newMessage().key("a").value("1").send();
            producer.newMessage().key("b").value("2").send();
            producer.newMessage().key("a").value("3").send();
            TableView<String> view = side.client().newTableView(Schema.STRING).topic(side.topic()).create();
            Map<String, String> before = new TreeMap<>();
            view.forEach(before::put);
            producer.newMessage().key("c").value("4").send();
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
            while (!view.containsKey("c") && System.nanoTime() < deadline) {
                Thread.sleep(10);
            }
            Map<String, String> after = new TreeMap<>();
            view.forEach(after::put);
            return Program.map("before", before, "after", after);
        }
    }

    static Object regex(Program.Side side) throws Exception {
        String base = side.topic();
        for (String name : List.of("-x", "-y")) {
            side.client().newProducer().topic(base + name).create().close();
        }
        Consumer<byte[]> consumer = side.client().newConsumer().topicsPattern(Pattern.compile(base + "-[xyz]")).subscriptionName("sub")
                .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS).subscribe();
        TreeSet<String> got = new TreeSet<>();
        for (String name : List.of("-x", "-y", "-z", "-other")) {
            try (Producer<byte[]> producer = side.client().newProducer().topic(base + name).create()) {
                producer.send(name.getBytes());
            }
            if (name.equals("-y")) {
                got.addAll(Program.texts(consumer, 2));
                // A topic that is made later is found by the watcher, or by the next look.
                side.client().newProducer().topic(base + "-z").create().close();
                Thread.sleep(3_000);
            }
        }
        got.addAll(Program.texts(consumer, 1));
        return Program.map("got", got, "more", consumer.receive(500, TimeUnit.MILLISECONDS) != null);
    }

    static Object partitioned(Program.Side side) throws Exception {
        side.admin().topics().createPartitionedTopic(side.topic(), 3);
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Exclusive).subscribe();
        Map<String, Object> partitions = new HashMap<>();
        try (Producer<byte[]> producer = side.producer()) {
            for (int number = 0; number < 9; number++) {
                producer.newMessage().key("k" + number).value(("" + number).getBytes()).send();
            }
        }
        for (int number = 0; number < 9; number++) {
            Message<byte[]> message = consumer.receive(10, TimeUnit.SECONDS);
            partitions.put(message.getKey(), message.getTopicName().substring(message.getTopicName().lastIndexOf('-') + 1));
            consumer.acknowledge(message);
        }
        return Program.map("partitions", new TreeMap<>(partitions), "names",
                side.client().getPartitionsForTopic(side.topic()).get().stream().map(each -> each.substring(each.length() - 11)).toList());
    }

    static Object terminated(Program.Side side) throws Exception {
        Producer<byte[]> producer = side.producer();
        producer.send("1".getBytes());
        MessageId last = producer.send("2".getBytes());
        Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Failover).subscribe();
        boolean before = consumer.hasReachedEndOfTopic();
        boolean same = side.admin().topics().terminateTopic(side.topic()).equals(last);
        List<String> got = Program.texts(consumer, 2);
        for (int look = 0; look < 100 && !consumer.hasReachedEndOfTopic(); look++) {
            Thread.sleep(100);
        }
        return Program.map("before", before, "same", same, "got", got, "end", consumer.hasReachedEndOfTopic(), "send",
                Program.failing(() -> producer.send("3".getBytes())), "producer", Program.failing(() -> side.producing().create()));
    }

    static Object nonDurable(Program.Side side) throws Exception {
        send(side, "1", "2", "3");
        List<Object> saw = new ArrayList<>();
        for (int time = 0; time < 2; time++) {
            try (Consumer<byte[]> consumer = side.consuming("sub", SubscriptionType.Exclusive).subscriptionMode(SubscriptionMode.NonDurable)
                    .subscribe()) {
                saw.add(Program.texts(consumer, 2));
                saw.add(side.admin().topics().getStats(side.topic()).getSubscriptions().get("sub").isDurable());
            }
            saw.add(side.admin().topics().getSubscriptions(side.topic()));
        }
        return saw;
    }

    private SubscriptionCases() {}
}
