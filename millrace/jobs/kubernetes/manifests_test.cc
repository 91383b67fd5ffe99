#include "millrace/jobs/kubernetes/manifests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "millrace/base/config.h"

namespace millrace::jobs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::string_view kPodJob = R"(name: tested
data: {sources: [{url: "s3://corpus/x.jsonl"}], tokenizer: "s3://models/t.model"}
train: {steps: 10, global_batch: 8}
run: {launcher: kubernetes, nodes: 2, processes_per_node: 4, image: "registry/millrace:1"}
)";

Spec Parsed(const std::vector<std::string>& assignments) {
  auto spec = Spec::Parse(kPodJob, "job.yaml", assignments);
  EXPECT_TRUE(spec) << spec.error().ToString();
  return *std::move(spec);
}

std::vector<ClusterObject> Objects(const std::vector<std::string>& assignments = {}) {
  return RenderObjects(Parsed(assignments), "space", {.agent_key = "secret", .env = {{"MILLRACE_REGION", "r"}}});
}

std::string PodRefusal(const std::vector<std::string>& assignments) {
  const auto spec = Spec::Parse(kPodJob, "job.yaml", assignments);
  return spec ? "accepted" : spec.error().ToString();
}

const Json& At(const Json& json, const char* pointer) { return json.at(Json::json_pointer(pointer)); }

TEST(Manifests, AJobHasAHostNameForEachPodItsFileAndAKey) {
  const auto objects = Objects();
  ASSERT_EQ(objects.size(), 4u);
  EXPECT_EQ(objects[0].path, "/apis/batch/v1/namespaces/space/jobs");
  const Json& job = objects[0].body;
  EXPECT_EQ(At(job, "/spec/completions"), 2);
  EXPECT_EQ(At(job, "/spec/suspend"), true);  // until the others are there
  EXPECT_EQ(At(job, "/spec/template/spec/subdomain"), "tested");
  EXPECT_EQ(At(job, "/spec/template/spec/containers/0/command"),
            Json::array({"/usr/bin/millrace", "job", "pod", kPodJobFile}));
  EXPECT_EQ(At(job, "/spec/template/spec/securityContext/runAsNonRoot"), true);
  const Json& config = objects[1].body;
  EXPECT_EQ(config["kind"], "ConfigMap");
  const auto inside = Spec::Parse(At(config, "/data/job.yaml").get<std::string>(), "job.yaml");
  ASSERT_TRUE(inside) << inside.error().ToString();
  EXPECT_TRUE(*inside == Parsed({}));
  EXPECT_EQ(At(objects[2].body, "/stringData/key"), "secret");
  EXPECT_EQ(At(objects[3].body, "/spec/clusterIP"), "None");
  EXPECT_EQ(At(objects[3].body, "/spec/publishNotReadyAddresses"), true);
  EXPECT_EQ(At(objects[3].body, "/spec/ports/0/port"), kAgentPort);
  // The key is in the Secret alone.
  for (const std::size_t other : {0, 1, 3})
    EXPECT_THAT(DumpJson(objects[other].body), testing::Not(HasSubstr("secret\"}")));
}

TEST(Manifests, PodsThatLeaveComeBackAndAFailedSupervisorEndsTheJob) {
  const Json rules = At(Objects()[0].body, "/spec/podFailurePolicy/rules");
  EXPECT_EQ(At(rules, "/0/onPodConditions/0/type"), "DisruptionTarget");
  EXPECT_EQ(At(rules, "/1/action"), "Ignore");
  EXPECT_EQ(At(rules, "/1/onExitCodes/values"), Json::array({130, 143}));
  EXPECT_EQ(At(rules, "/2/action"), "FailJob");
  EXPECT_EQ(At(Objects()[0].body, "/spec/successPolicy/rules/0/succeededIndexes"), "0");
}

TEST(Manifests, HaveWhatTheJobFileSays) {
  const Json job = Objects({"run.resources={nvidia.com/gpu: 8, memory: 64Gi}", "run.node_selector={pool: gpu}",
                            "run.tolerations=[{key: gpu, operator: Exists}]", "run.priority=high",
                            "run.service_account=trainer", "run.env_from=[aws]", "run.shared_memory=1GiB",
                            "run.image_pull_policy=Never", "run.image_pull_secrets=[registry]", "run.queue=team",
                            "run.user=0", "run.labels={team: nlp}", "run.annotations={note: \"1\"}",
                            "run.volumes=[{mount_path: /data, read_only: true, source: {persistentVolumeClaim: "
                            "{claimName: data}}}]"})[0]
                       .body;
  const Json& pod = At(job, "/spec/template/spec");
  const Json& container = At(pod, "/containers/0");
  EXPECT_EQ(At(container, "/resources/limits/nvidia.com~1gpu"), "8");
  EXPECT_EQ(At(container, "/resources/requests/memory"), "64Gi");
  EXPECT_EQ(At(container, "/imagePullPolicy"), "Never");
  EXPECT_EQ(At(container, "/envFrom/0/secretRef/name"), "aws");
  EXPECT_EQ(At(pod, "/nodeSelector/pool"), "gpu");
  EXPECT_EQ(At(pod, "/tolerations/0/operator"), "Exists");
  EXPECT_EQ(At(pod, "/priorityClassName"), "high");
  EXPECT_EQ(At(pod, "/serviceAccountName"), "trainer");
  EXPECT_EQ(At(pod, "/imagePullSecrets/0/name"), "registry");
  EXPECT_EQ(At(pod, "/securityContext/runAsNonRoot"), false);
  EXPECT_EQ(At(job, "/metadata/labels/kueue.x-k8s.io~1queue-name"), "team");
  EXPECT_EQ(At(job, "/spec/template/metadata/labels/team"), "nlp");
  EXPECT_EQ(At(job, "/metadata/annotations/note"), "1");
  bool has_memory = false, has_claim = false, is_mounted = false;
  for (const Json& volume : pod["volumes"]) {
    has_memory = has_memory || (volume["name"] == "shared-memory" && volume["emptyDir"]["medium"] == "Memory" &&
                                volume["emptyDir"]["sizeLimit"] == "1073741824");
    has_claim = has_claim || volume.value(Json::json_pointer("/persistentVolumeClaim/claimName"), "") == "data";
  }
  for (const Json& mount : container["volumeMounts"]) {
    is_mounted = is_mounted || (mount["mountPath"] == "/data" && mount["readOnly"] == true);
  }
  EXPECT_TRUE(has_memory && has_claim && is_mounted) << DumpJsonPretty(pod);
}

TEST(Manifests, VolumesAreClaimsAndBuckets) {
  const Json job =
      Objects({"run.volumes=[{mount_path: /data, claim: corpus, read_only: true}, {mount_path: /models, "
               "bucket: models, prefix: llama/, secret: keys}]"})[0]
          .body;
  std::map<std::string, Json> volumes;
  for (const Json& volume : At(job, "/spec/template/spec/volumes")) volumes[volume["name"]] = volume;
  EXPECT_EQ(volumes["volume-1"]["persistentVolumeClaim"], (Json{{"claimName", "corpus"}, {"readOnly", true}}));
  const Json& csi = volumes["volume-2"]["csi"];
  EXPECT_EQ(csi["driver"], "csi.millrace.dev");
  EXPECT_EQ(csi["readOnly"], false);
  EXPECT_EQ(csi["nodePublishSecretRef"]["name"], "keys");
  EXPECT_EQ(csi["volumeAttributes"], (Json{{"bucketName", "models"},
                                           {"authenticationSource", "secret"},
                                           {"prefix", "llama/"},
                                           {"mountOptions", "allow-delete,allow-overwrite"}}));
}

TEST(Manifests, FoldersOfAProgramAreVolumes) {
  const Spec spec =
      Spec::Parse("name: mine\nrun: {command: [python, train.py]}\ncheckpoint: {url: \"s3://runs/mine\"}\n", "job.yaml",
                  {"run.launcher=kubernetes", "run.image=mine:1", "run.mounts_secret=keys",
                   "run.mounts={\"s3://corpus/texts\": \"/data:ro\"}",
                   "run.volumes=[{mount_path: /scratch, source: {emptyDir: {}}}]"})
          .value();
  const Json job = RenderObjects(spec, "space", {})[0].body;
  const Json& pod = At(job, "/spec/template/spec");
  std::map<std::string, Json> volumes, paths;
  for (const Json& volume : pod["volumes"]) volumes[volume["name"]] = volume;
  for (const Json& mount : pod["containers"][0]["volumeMounts"]) paths[mount["mountPath"]] = volumes[mount["name"]];
  EXPECT_TRUE(paths["/scratch"].contains("emptyDir"));
  const Json& data = paths["/data"]["csi"];
  EXPECT_EQ(data["readOnly"], true);
  EXPECT_EQ(data["nodePublishSecretRef"]["name"], "keys");
  EXPECT_EQ(data["volumeAttributes"]["bucketName"], "corpus");
  EXPECT_EQ(data["volumeAttributes"]["prefix"], "texts/");
  const Json& saved = paths["/mnt/checkpoints"]["csi"];
  EXPECT_EQ(saved["readOnly"], false);
  EXPECT_EQ(saved["volumeAttributes"]["bucketName"], "runs");
  EXPECT_EQ(saved["volumeAttributes"]["prefix"], "mine/");
}

TEST(Manifests, MistakesAreNamed) {
  EXPECT_THAT(PodRefusal({"run.image=\"\""}), AllOf(HasSubstr("run.image"), HasSubstr("is required")));
  EXPECT_THAT(PodRefusal({"name=Tested_1"}), AllOf(HasSubstr("name"), HasSubstr("lower-case")));
  EXPECT_THAT(PodRefusal({"run.namespace=a/b"}), HasSubstr("run.namespace"));
  EXPECT_THAT(PodRefusal({"run.resources={memory: 64 GB}"}),
              AllOf(HasSubstr("run.resources.memory"), HasSubstr("64Gi")));
  EXPECT_THAT(PodRefusal({"run.env_from=[\"a b\"]"}), HasSubstr("cannot be the name of a Secret"));
  EXPECT_THAT(PodRefusal({"run.volumes=[{source: {emptyDir: {}}}]"}), HasSubstr("mount_path"));
  EXPECT_THAT(PodRefusal({"run.volumes=[{mount_path: /x}]"}), HasSubstr("source"));
  EXPECT_THAT(PodRefusal({"run.volumes=[{mount_path: /x, claim: a, source: {emptyDir: {}}}]"}), HasSubstr("one of"));
  EXPECT_THAT(PodRefusal({"run.volumes=[{mount_path: /x, claim: A_B}]"}), HasSubstr("PersistentVolumeClaim"));
  EXPECT_THAT(PodRefusal({"run.volumes=[{mount_path: /x, bucket: corpus}]"}), HasSubstr("secret"));
  EXPECT_THAT(PodRefusal({"run.volumes=[{mount_path: /x, bucket: corpus/a, secret: s}]"}), HasSubstr("bucket"));
  EXPECT_THAT(PodRefusal({"run.volumes=[{mount_path: /x, readonly: true, source: {emptyDir: {}}}]"}),
              HasSubstr("read_only"));
  EXPECT_THAT(PodRefusal({"run.image_pull_policy=never"}), HasSubstr("IfNotPresent"));
  EXPECT_THAT(PodRefusal({"run.launcher=local", "run.nodes=1"}), AllOf(HasSubstr("image"), HasSubstr("kubernetes")));
  EXPECT_THAT(PodRefusal({"run.partition=gpu"}), HasSubstr("launcher: slurm"));
}

TEST(Manifests, AnMpiJobHasALauncherAndWorkersWithSsh) {
  const auto objects = Objects({"run.launcher=mpijob"});
  ASSERT_EQ(objects.size(), 2u);
  EXPECT_EQ(objects[0].path, "/apis/kubeflow.org/v2beta1/namespaces/space/mpijobs");
  const Json& job = objects[0].body;
  EXPECT_EQ(At(job, "/spec/slotsPerWorker"), 4);
  EXPECT_EQ(At(job, "/spec/runPolicy/cleanPodPolicy"), "Running");
  EXPECT_EQ(At(job, "/spec/runPolicy/suspend"), true);
  EXPECT_EQ(At(job, "/spec/mpiReplicaSpecs/Worker/replicas"), 2);
  EXPECT_EQ(At(job, "/spec/mpiReplicaSpecs/Worker/template/spec/containers/0/command"),
            Json::array({"/usr/sbin/sshd", "-De"}));
  EXPECT_FALSE(At(job, "/spec/mpiReplicaSpecs/Launcher/template/spec/containers/0").contains("resources"));
}

TEST(Manifests, AJobSetSuspendsItsJobsItself) {
  const auto objects = Objects({"run.launcher=jobset"});
  ASSERT_EQ(objects.size(), 3u);
  const Json& set = objects[0].body;
  EXPECT_EQ(At(set, "/spec/suspend"), true);
  EXPECT_EQ(At(set, "/spec/network/subdomain"), "tested");
  EXPECT_EQ(At(set, "/spec/replicatedJobs/0/template/spec/completions"), 2);
  EXPECT_FALSE(At(set, "/spec/replicatedJobs/0/template/spec").contains("suspend"));
}

TEST(Manifests, ThePodsAreTheNodesOfTheSupervisor) {
  const auto nodes = PodNodes(Parsed({}), "/usr/bin/millrace");
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].address, "tested-0.tested");
  EXPECT_EQ(nodes[0].command, (std::vector<std::string>{"/usr/bin/millrace", "job", "agent"}));
  EXPECT_THAT(nodes[1].command, testing::Contains("tested-1.tested:7420"));
  EXPECT_EQ(PodNodes(Parsed({"run.launcher=jobset"}), "m")[1].address, "tested-nodes-0-1.tested");
}

TEST(Manifests, YamlIsReadBackAsTheSameObjects) {
  const Json odd = {{"texts", Json::array({"true", "1", "", "a: b", "# no", "x\ny\n", "- z", "null", "plain/text.1"})},
                    {"nested", Json::array({Json::array({1, 2}), Json::object(), {{"a", Json::array()}}})},
                    {"file", "line 1\n\n  line: 3\n"},
                    {"empty", nullptr}};
  const auto read = config::Document::Parse(ToYaml(odd), "yaml");
  ASSERT_TRUE(read) << read.error().ToString() << ToYaml(odd);
  const auto texts = read->Root()["texts"].Elements();
  ASSERT_EQ(texts.size(), odd["texts"].size());
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(*texts[i].String(), odd["texts"][i].get<std::string>());
  EXPECT_EQ(*read->Root()["nested"].Elements()[0].Elements()[1].Int(0, 9), 2);
  EXPECT_EQ(*read->Root()["file"].String(), "line 1\n\n  line: 3\n");
}

}  // namespace
}  // namespace millrace::jobs
