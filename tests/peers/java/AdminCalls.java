// Calls each method of Pulsar's own admin client that docs/admin.md claims, and prints what came of it, a line a call:
//   NAME<tab>ok<tab>RESULT   or   NAME<tab>CLASS OF THE EXCEPTION<tab>STATUS
// Arguments: the HTTP URL of a broker, its pulsar:// URL, the name of its cluster. Where results are the broker's own
// (addresses, ledgers, times) only their type is printed.

import java.util.*;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.*;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.common.policies.data.*;
import org.apache.pulsar.common.protocol.schema.PostSchemaPayload;

public class AdminCalls {
    interface Act { void run() throws Exception; }

    static void call(String name, Callable<?> of) {
        try {
            System.out.println(name + "\tok\t" + of.call());
        } catch (PulsarAdminException error) {
            System.out.println(name + "\t" + error.getClass().getSimpleName() + "\t" + error.getStatusCode());
        } catch (Exception error) {
            System.out.println(name + "\t" + error.getClass().getSimpleName() + "\t" + error.getMessage());
        }
    }

    static void act(String name, Act of) {
        call(name, () -> { of.run(); return ""; });
    }

    /** Waits until the asked side has heard of its own change, for 30 s at most. */
    static void known(Callable<?> of) throws Exception {
        for (int tries = 0; tries < 300 && of.call() == null; tries++) {
            Thread.sleep(100);
        }
    }

    static String kind(Object value) {
        return value == null ? "null" : value.getClass().getSimpleName();
    }

    public static void main(String[] given) throws Exception {
        String cluster = given[2], namespace = "java/admin", topic = "persistent://java/admin/plain";
        String parted = "persistent://java/admin/parted", first = parted + "-partition-0";
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(given[0]).build();
                PulsarClient client = PulsarClient.builder().serviceUrl(given[1]).build()) {
            Clusters clusters = admin.clusters();
            call("clusters", () -> clusters.getClusters().contains(cluster));
            call("cluster", () -> clusters.getCluster(cluster).getServiceUrl() != null);
            call("no cluster", () -> clusters.getCluster("none"));
            call("peers", () -> clusters.getPeerClusterNames(cluster));
            call("failure domains", () -> clusters.getFailureDomains(cluster));
            Brokers brokers = admin.brokers();
            call("brokers", () -> brokers.getActiveBrokers(cluster).size());
            call("leader", () -> kind(brokers.getLeaderBroker().getServiceUrl()));
            act("health", brokers::healthcheck);
            act("health v2", () -> brokers.healthcheck(org.apache.pulsar.common.naming.TopicVersion.V2));
            act("quota check", brokers::backlogQuotaCheck);
            call("version", () -> kind(brokers.getVersion()));
            call("dynamic settings", () -> kind(brokers.getAllDynamicConfigurations()));

            Tenants tenants = admin.tenants();
            TenantInfo tenant = TenantInfo.builder().adminRoles(Set.of()).allowedClusters(Set.of(cluster)).build();
            act("tenant is made", () -> tenants.createTenant("java", tenant));
            act("tenant is there", () -> tenants.createTenant("java", tenant));
            act("tenant is changed", () -> tenants.updateTenant("java", tenant));
            call("tenants", () -> tenants.getTenants().contains("java"));
            call("tenant", () -> tenants.getTenantInfo("java").getAdminRoles());
            call("no tenant", () -> tenants.getTenantInfo("none"));

            Namespaces namespaces = admin.namespaces();
            act("namespace is made", () -> namespaces.createNamespace(namespace));
            act("namespace is there", () -> namespaces.createNamespace(namespace));
            act("namespace with bundles", () -> namespaces.createNamespace("java/bundles", 4));
            act("namespace with clusters", () -> namespaces.createNamespace("java/clusters", Set.of(cluster)));
            Policies policies = new Policies();
            policies.message_ttl_in_seconds = 60;
            policies.replication_clusters = Set.of(cluster);
            policies.retention_policies = new RetentionPolicies(10, 20);
            act("namespace with policies", () -> namespaces.createNamespace("java/policies", policies));
            call("its ttl", () -> namespaces.getPolicies("java/policies").message_ttl_in_seconds);
            call("namespaces", () -> namespaces.getNamespaces("java"));
            call("no namespaces", () -> namespaces.getNamespaces("none"));
            call("topics of a namespace", () -> namespaces.getTopics(namespace));
            call("policies", () -> namespaces.getPolicies(namespace).replication_clusters);
            call("no policies", () -> namespaces.getPolicies("java/none"));
            call("bundles", () -> namespaces.getBundles(namespace).getBoundaries().size() > 1);
            call("permissions", () -> namespaces.getPermissions(namespace));
            call("permissions of subscriptions", () -> namespaces.getPermissionOnSubscription(namespace));
            call("replication", () -> namespaces.getNamespaceReplicationClusters(namespace));
            act("replication is set", () -> namespaces.setNamespaceReplicationClusters(namespace, Set.of(cluster)));
            act("replication to none", () -> namespaces.setNamespaceReplicationClusters(namespace, Set.of("none")));
            call("ttl", () -> namespaces.getNamespaceMessageTTL(namespace));
            act("ttl is set", () -> namespaces.setNamespaceMessageTTL(namespace, 100));
            call("ttl then", () -> namespaces.getNamespaceMessageTTL(namespace));
            act("ttl is removed", () -> namespaces.removeNamespaceMessageTTL(namespace));
            call("retention", () -> namespaces.getRetention(namespace));
            act("retention is set", () -> namespaces.setRetention(namespace, new RetentionPolicies(10, 20)));
            call("retention then", () -> namespaces.getRetention(namespace).getRetentionSizeInMB());
            act("retention is removed", () -> namespaces.removeRetention(namespace));
            BacklogQuota size = BacklogQuota.builder().limitSize(1_000_000).limitTime(-1)
                    .retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception).build();
            act("quota is set", () -> namespaces.setBacklogQuota(namespace, size));
            call("quota", () -> namespaces.getBacklogQuotaMap(namespace).keySet());
            act("quota is removed", () -> namespaces.removeBacklogQuota(namespace));
            act("deduplication is set", () -> namespaces.setDeduplicationStatus(namespace, true));
            call("deduplication", () -> namespaces.getDeduplicationStatus(namespace));
            act("deduplication is removed", () -> namespaces.removeDeduplicationStatus(namespace));
            call("delayed delivery", () -> namespaces.getDelayedDelivery(namespace));
            act("delayed delivery is set", () -> namespaces.setDelayedDeliveryMessages(
                    namespace, DelayedDeliveryPolicies.builder().active(true).tickTime(1000).build()));
            act("delayed delivery is removed", () -> namespaces.removeDelayedDeliveryMessages(namespace));
            act("compaction threshold is set", () -> namespaces.setCompactionThreshold(namespace, 1000));
            call("compaction threshold", () -> namespaces.getCompactionThreshold(namespace));
            act("compaction threshold is removed", () -> namespaces.removeCompactionThreshold(namespace));
            act("producers are limited", () -> namespaces.setMaxProducersPerTopic(namespace, 10));
            call("limit of producers", () -> namespaces.getMaxProducersPerTopic(namespace));
            act("limit of producers is removed", () -> namespaces.removeMaxProducersPerTopic(namespace));
            act("consumers are limited", () -> namespaces.setMaxConsumersPerTopic(namespace, 10));
            call("limit of consumers", () -> namespaces.getMaxConsumersPerTopic(namespace));
            act("limit of consumers is removed", () -> namespaces.removeMaxConsumersPerTopic(namespace));
            act("unacked are limited", () -> namespaces.setMaxUnackedMessagesPerConsumer(namespace, 10));
            call("limit of unacked", () -> namespaces.getMaxUnackedMessagesPerConsumer(namespace));
            act("limit of unacked is removed", () -> namespaces.removeMaxUnackedMessagesPerConsumer(namespace));
            act("all unacked are limited", () -> namespaces.setMaxUnackedMessagesPerSubscription(namespace, 10));
            act("limit of all is removed", () -> namespaces.removeMaxUnackedMessagesPerSubscription(namespace));
            act("topics by use", () -> namespaces.setAutoTopicCreation(
                    namespace, AutoTopicCreationOverride.builder().allowAutoTopicCreation(true)
                            .topicType("partitioned").defaultNumPartitions(2).build()));
            call("topics by use then", () -> namespaces.getAutoTopicCreation(namespace).getDefaultNumPartitions());
            act("topics by use no more", () -> namespaces.removeAutoTopicCreation(namespace));
            act("subscriptions by use", () -> namespaces.setAutoSubscriptionCreation(
                    namespace, AutoSubscriptionCreationOverride.builder().allowAutoSubscriptionCreation(true).build()));
            act("subscriptions by use no more", () -> namespaces.removeAutoSubscriptionCreation(namespace));
            call("publish rate", () -> namespaces.getPublishRate(namespace));
            call("dispatch rate", () -> namespaces.getDispatchRate(namespace));
            call("subscription dispatch rate", () -> namespaces.getSubscriptionDispatchRate(namespace));
            call("replicator dispatch rate", () -> namespaces.getReplicatorDispatchRate(namespace));
            call("subscribe rate", () -> namespaces.getSubscribeRate(namespace));
            call("persistence", () -> namespaces.getPersistence(namespace));
            call("inactive topics", () -> namespaces.getInactiveTopicPolicies(namespace));
            call("encryption required", () -> namespaces.getEncryptionRequiredStatus(namespace));
            act("encryption is not required", () -> namespaces.setEncryptionRequiredStatus(namespace, false));
            call("subscription auth mode", () -> namespaces.getSubscriptionAuthMode(namespace));
            call("subscription expiration", () -> namespaces.getSubscriptionExpirationTime(namespace));
            call("snapshot interval", () -> namespaces.getDeduplicationSnapshotInterval(namespace));
            call("subscriptions a topic", () -> namespaces.getMaxSubscriptionsPerTopic(namespace));
            call("consumers a subscription", () -> namespaces.getMaxConsumersPerSubscription(namespace));
            call("topics a namespace", () -> namespaces.getMaxTopicsPerNamespace(namespace));
            call("offload threshold", () -> namespaces.getOffloadThreshold(namespace));
            call("offload policies", () -> namespaces.getOffloadPolicies(namespace));
            call("types enabled", () -> namespaces.getSubscriptionTypesEnabled(namespace));
            call("resource group", () -> namespaces.getNamespaceResourceGroup(namespace));
            call("entry filters", () -> namespaces.getNamespaceEntryFilters(namespace));
            call("properties", () -> namespaces.getProperties(namespace));
            call("schema validation", () -> namespaces.getSchemaValidationEnforced(namespace));
            call("schema auto update", () -> namespaces.getIsAllowAutoUpdateSchema(namespace));
            call("schema strategy", () -> namespaces.getSchemaCompatibilityStrategy(namespace));
            call("allowed clusters", () -> namespaces.getNamespaceAllowedClusters(namespace));
            act("namespace is unloaded", () -> namespaces.unload(namespace));

            Topics topics = admin.topics();
            act("topic is made", () -> topics.createNonPartitionedTopic(topic));
            act("topic is there", () -> topics.createNonPartitionedTopic(topic));
            act("partitioned topic is made", () -> topics.createPartitionedTopic(parted, 2));
            act("partitions are added", () -> topics.updatePartitionedTopic(parted, 3));
            act("fewer partitions", () -> topics.updatePartitionedTopic(parted, 1));
            call("partitions", () -> topics.getPartitionedTopicMetadata(parted).partitions);
            call("list", () -> new TreeSet<>(topics.getList(namespace)));
            call("partitioned list", () -> topics.getPartitionedTopicList(namespace));
            act("missing partitions", () -> topics.createMissedPartitions(parted));
            call("topic permissions", () -> topics.getPermissions(topic));
            call("lookup", () -> kind(admin.lookups().lookupTopic(topic)));
            call("lookup of partitions", () -> admin.lookups().lookupPartitionedTopic(parted).size());
            call("bundle range", () -> kind(admin.lookups().getBundleRange(topic)));
            act("subscription is made", () -> topics.createSubscription(topic, "jobs", MessageId.earliest));
            act("subscription is there", () -> topics.createSubscription(topic, "jobs", MessageId.earliest));
            act("subscription with properties", () -> topics.createSubscription(
                    topic, "props", MessageId.latest, true, Map.of("a", "b")));
            act("subscription of partitions", () -> topics.createSubscription(parted, "jobs", MessageId.earliest));
            call("subscriptions", () -> new TreeSet<>(topics.getSubscriptions(topic)));
            call("subscription properties", () -> topics.getSubscriptionProperties(topic, "props"));
            act("other properties", () -> topics.updateSubscriptionProperties(topic, "props", Map.of("c", "d")));
            call("other properties then", () -> topics.getSubscriptionProperties(topic, "props"));
            List<MessageId> sent = new ArrayList<>();
            try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
                for (int number = 0; number < 10; number++) {
                    sent.add(producer.newMessage().key("k" + number).property("n", "" + number)
                            .value(("message " + number).getBytes()).send());
                }
            }
            try (Producer<byte[]> producer = client.newProducer().topic(topic)
                    .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
                for (int number = 0; number < 5; number++) {
                    producer.newMessage().value(("batched " + number).getBytes()).sendAsync();
                }
                producer.flush();
            }
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("jobs")
                    .subscriptionType(SubscriptionType.Shared).subscribe()) {
                List<Message<byte[]>> got = new ArrayList<>();
                for (int number = 0; number < 6; number++) {
                    got.add(consumer.receive(10, TimeUnit.SECONDS));
                }
                consumer.acknowledge(got.get(1));
                consumer.acknowledge(got.get(3));
                Thread.sleep(500);  // acknowledgements are grouped for 100 ms
                call("stats of who is connected", () -> topics.getStats(topic).getSubscriptions().get("jobs")
                        .getConsumers().size());
            }
            call("stats", () -> topics.getStats(topic).getMsgInCounter());
            call("precise stats", () -> topics.getStats(topic, true, true, true).getSubscriptions().get("jobs").getMsgBacklog());
            call("ranges", () -> topics.getInternalStats(topic).cursors.get("jobs").individuallyDeletedMessages.split(",").length);
            call("entries", () -> topics.getInternalStats(topic).numberOfEntries);
            call("internal info", () -> topics.getInternalInfo(topic).startsWith("{"));
            call("stats of partitions", () -> topics.getPartitionedStats(parted, true).getPartitions().size());
            call("internal stats of partitions", () -> topics.getPartitionedInternalStats(parted).partitions.size());
            call("no stats", () -> topics.getStats("persistent://java/admin/none"));
            call("last message", () -> kind(topics.getLastMessageId(topic)));
            call("message at a time", () -> topics.getMessageIdByTimestamp(topic, 0).toString()
                    .equals(sent.get(0).toString()));
            call("backlog size", () -> topics.getBacklogSizeByMessageId(topic, MessageId.earliest) > 0);
            call("backlog", () -> topics.analyzeSubscriptionBacklog(topic, "jobs", Optional.empty()).getMessages());
            call("peeked", () -> new String(topics.peekMessages(topic, "jobs", 1).get(0).getValue()));
            call("peeked with a batch", () -> topics.peekMessages(topic, "jobs", 12).size());
            call("examined", () -> new String(topics.examineMessage(topic, "earliest", 2).getValue()));
            call("examined at the end", () -> kind(topics.examineMessage(topic, "latest", 1)));
            MessageIdAdv third = (MessageIdAdv) sent.get(2);
            call("by id", () -> new String(topics.getMessagesById(topic, third.getLedgerId(), third.getEntryId())
                    .get(0).getValue()));
            call("not by id", () -> topics.getMessagesById(topic, 1L << 40, 0));
            act("skipped", () -> topics.skipMessages(topic, "jobs", 2));
            call("left", () -> topics.getStats(topic).getSubscriptions().get("jobs").getMsgBacklog());
            act("expired by id", () -> topics.expireMessages(topic, "jobs", sent.get(6), false));
            act("expired by time", () -> topics.expireMessages(topic, "jobs", 3600));
            act("reset by id", () -> topics.resetCursor(topic, "jobs", sent.get(0)));
            act("reset past an id", () -> topics.resetCursor(topic, "jobs", sent.get(0), true));
            act("reset by time", () -> topics.resetCursor(topic, "jobs", System.currentTimeMillis() - 3_600_000));
            act("reset of partitions", () -> topics.resetCursor(parted, "jobs", 0));
            act("all skipped", () -> topics.skipAllMessages(topic, "jobs"));
            act("replicated on", () -> topics.setReplicatedSubscriptionStatus(topic, "jobs", true));
            call("replicated", () -> topics.getReplicatedSubscriptionStatus(topic, "jobs"));
            act("replicated off", () -> topics.setReplicatedSubscriptionStatus(topic, "jobs", false));
            act("subscription is deleted", () -> topics.deleteSubscription(topic, "props"));
            act("no subscription", () -> topics.deleteSubscription(topic, "none"));
            act("compaction", () -> topics.triggerCompaction(topic));
            call("compaction status", () -> kind(topics.compactionStatus(topic).status));
            act("trim", () -> topics.trimTopic(topic));
            act("unload", () -> topics.unload(topic));
            act("namespace's backlog", () -> namespaces.clearNamespaceBacklogForSubscription(namespace, "jobs"));

            // A broker changes what it knows of a topic's policies, and hears of its own changes by a topic, after a while:
            // of two changes at once one is lost.
            act("topic ttl", () -> admin.topicPolicies().setMessageTTL(topic, 60));
            known(() -> admin.topicPolicies().getMessageTTL(topic));
            act("topic retention", () -> admin.topicPolicies().setRetention(topic, new RetentionPolicies(1, 1)));
            known(() -> admin.topicPolicies().getRetention(topic));
            act("topic producers", () -> admin.topicPolicies().setMaxProducers(topic, 3));
            known(() -> admin.topicPolicies().getMaxProducers(topic));
            act("topic deduplication", () -> admin.topicPolicies().setDeduplicationStatus(topic, true));
            known(() -> admin.topicPolicies().getDeduplicationStatus(topic));
            act("topic message size", () -> admin.topicPolicies().setMaxMessageSize(topic, 10_000));
            known(() -> admin.topicPolicies().getMaxMessageSize(topic));
            call("topic ttl then", () -> admin.topicPolicies().getMessageTTL(topic));
            call("topic retention then", () -> admin.topicPolicies().getRetention(topic).getRetentionTimeInMinutes());
            call("topic producers then", () -> admin.topicPolicies().getMaxProducers(topic));
            call("topic consumers", () -> admin.topicPolicies().getMaxConsumers(topic));
            call("topic message size then", () -> admin.topicPolicies().getMaxMessageSize(topic));
            act("topic ttl is removed", () -> admin.topicPolicies().removeMessageTTL(topic));
            act("topic quota", () -> admin.topicPolicies().setBacklogQuota(topic, size));
            act("topic quota is removed", () -> admin.topicPolicies().removeBacklogQuota(topic));
            call("topic dispatch rate", () -> admin.topicPolicies().getDispatchRate(topic));

            String typed = "persistent://java/admin/typed";
            Schemas schemas = admin.schemas();
            PostSchemaPayload avro = new PostSchemaPayload("AVRO",
                    "{\"type\":\"record\",\"name\":\"A\",\"fields\":[{\"name\":\"x\",\"type\":\"int\"}]}", Map.of());
            PostSchemaPayload other = new PostSchemaPayload("AVRO",
                    "{\"type\":\"record\",\"name\":\"A\",\"fields\":[{\"name\":\"x\",\"type\":\"string\"}]}", Map.of());
            call("no schema", () -> schemas.getSchemaInfo(typed));
            act("schema", () -> schemas.createSchema(typed, avro));
            call("schema then", () -> schemas.getSchemaInfo(typed).getType());
            call("schema by version", () -> schemas.getSchemaInfo(
                    typed, schemas.getSchemaInfoWithVersion(typed).getVersion()).getType());
            call("schemas", () -> schemas.getAllSchemas(typed).size());
            call("version of a schema", () -> schemas.getVersionBySchema(typed, avro)
                    .equals(schemas.getSchemaInfoWithVersion(typed).getVersion()));
            call("compatible", () -> schemas.testCompatibility(typed, avro).isCompatibility());
            act("incompatible", () -> schemas.createSchema(typed, other));
            call("key and value", () -> {
                String both = "persistent://java/admin/both";
                schemas.createSchema(both, Schema.KeyValue(Schema.STRING, Schema.INT32).getSchemaInfo());
                return schemas.getSchemaInfo(both).getType();
            });
            act("schema is deleted", () -> schemas.deleteSchema(typed));
            call("schema is gone", () -> schemas.getSchemaInfo(typed));

            call("terminated", () -> kind(topics.terminateTopic(first)));
            act("partitions by another name", () -> topics.delete(parted));
            act("partitioned topic is deleted", () -> topics.deletePartitionedTopic(parted));
            act("topic is deleted", () -> topics.delete(topic, true));
            act("no topic is deleted", () -> topics.delete(topic));
            act("empty namespace is deleted", () -> namespaces.deleteNamespace("java/bundles"));
            act("tenant with namespaces", () -> tenants.deleteTenant("java"));
        }
    }
}
