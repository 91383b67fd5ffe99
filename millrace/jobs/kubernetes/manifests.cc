#include "millrace/jobs/kubernetes/manifests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/jobs/spec/foreign_program.h"
#include "millrace/jobs/spec/hostfile.h"
#include "millrace/object/url.h"

namespace millrace::jobs {
namespace {

/// The grace time of ranks (Policy::Options::grace), and as much for the first and last words.
constexpr int kPodLeaveSeconds = 180;
/// Finished jobs stay for their logs.
constexpr int kKeepSeconds = 7 * 24 * 3600;
/// How often one pod may fail. The podFailurePolicy does not count pods that leave or are taken away.
constexpr int kMaxPodFailures = 20;
/// How often the launcher of an MPIJob starts. The operator cannot tell a deleted launcher from a failed job.
constexpr int kMaxLaunchers = 3;
constexpr const char* kMillrace = "/usr/bin/millrace";
constexpr const char* kCsiDriver = "csi.millrace.dev";
/// Not a volume: those that a group may write to are not to be trusted.
constexpr const char* kStateFolder = "/tmp/millrace";

Json TextObject(const std::map<std::string, std::string>& texts) {
  Json object = Json::object();
  for (const auto& [name, text] : texts) object[name] = text;
  return object;
}

/// Adds a member that is not empty.
void PutGiven(Json& object, const char* key, Json value) {
  const bool is_empty = value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
  if (!is_empty) object[key] = std::move(value);
}

/// Returns the path of all objects of the kind that has the pods.
std::string KindPath(const std::string& launcher, const std::string& space) {
  const auto [api, kind] = launcher == "mpijob"   ? std::pair("kubeflow.org/v2beta1", "mpijobs")
                           : launcher == "jobset" ? std::pair("jobset.x-k8s.io/v1alpha2", "jobsets")
                                                  : std::pair("batch/v1", "jobs");
  return fmt::format("/apis/{}/namespaces/{}/{}", api, space, kind);
}

class Renderer {
 public:
  Renderer(const Spec& spec, const std::string& space, const PodOptions& options)
      : spec_(spec), pods_(spec.run.kubernetes), space_(space), options_(options) {}

  std::vector<ClusterObject> Render() const {
    const std::string core = fmt::format("/api/v1/namespaces/{}/", space_);
    std::vector<ClusterObject> objects;
    objects.push_back({KindPath(spec_.run.launcher, space_), Owner()});
    objects.push_back(
        {core + "configmaps", Object("v1", "ConfigMap", spec_.name, {{"data", {{"job.yaml", spec_.Render()}}}})});
    if (spec_.run.launcher == "mpijob") return objects;
    objects.push_back({core + "secrets", Object("v1", "Secret", AgentSecret(),
                                                {{"type", "Opaque"}, {"stringData", {{"key", options_.agent_key}}}})});
    if (spec_.run.launcher == "jobset") return objects;  // its controller makes a Service
    const Json service = {{"clusterIP", "None"},
                          {"publishNotReadyAddresses", true},
                          {"selector", {{kJobNameLabel, spec_.name}}},
                          {"ports", Json::array({{{"name", "agent"}, {"port", kAgentPort}}})}};
    objects.push_back({core + "services", Object("v1", "Service", spec_.name, {{"spec", service}})});
    return objects;
  }

 private:
  std::string AgentSecret() const { return spec_.name + "-agents"; }

  Json Object(const char* version, const char* kind, const std::string& name, const Json& members) const {
    Json object = {{"apiVersion", version}, {"kind", kind}, {"metadata", Metadata()}};
    object["metadata"]["name"] = name;
    object["metadata"]["namespace"] = space_;
    object.update(members);
    return object;
  }

  Json Metadata() const {
    Json labels = TextObject(pods_.labels);
    labels["app.kubernetes.io/name"] = "millrace";
    labels[kJobNameLabel] = spec_.name;
    Json metadata = {{"labels", std::move(labels)}};
    PutGiven(metadata, "annotations", TextObject(pods_.annotations));
    return metadata;
  }

  Json Owner() const {
    Json owner = spec_.run.launcher == "mpijob"   ? MpiJob()
                 : spec_.run.launcher == "jobset" ? JobSet()
                                                  : Object("batch/v1", "Job", spec_.name, {{"spec", JobSpec()}});
    if (!pods_.queue.empty()) owner["metadata"]["labels"][kQueueLabel] = pods_.queue;
    return owner;
  }

  /// Pods that leave, with the exit status of a cancelled program (130), or that the cluster takes away, come back. The
  /// supervisor's other exit statuses are the job's: its ranks have been restarted as often as they may.
  Json JobSpec() const {
    Json spec = {{"suspend", true},
                 {"completionMode", "Indexed"},
                 {"completions", spec_.run.nodes},
                 {"parallelism", spec_.run.nodes},
                 {"backoffLimitPerIndex", kMaxPodFailures},
                 {"maxFailedIndexes", 0},
                 {"podReplacementPolicy", "Failed"},
                 {"ttlSecondsAfterFinished", kKeepSeconds}};
    Json gone = {{"action", "Ignore"},
                 {"onPodConditions", Json::array({{{"type", "DisruptionTarget"}, {"status", "True"}}})}};
    Json left = {
        {"action", "Ignore"},
        {"onExitCodes", {{"containerName", "millrace"}, {"operator", "In"}, {"values", Json::array({130, 143})}}}};
    Json failed = {
        {"action", "FailJob"},
        {"onExitCodes", {{"containerName", "millrace"}, {"operator", "In"}, {"values", Json::array({1, 2, 3, 4, 5})}}}};
    spec["podFailurePolicy"] = {{"rules", Json::array({std::move(gone), std::move(left), std::move(failed)})}};
    spec["successPolicy"] = {{"rules", Json::array({{{"succeededIndexes", "0"}}})}};
    Json pod = PodSpec(Json::array({kMillrace, "job", "pod", kPodJobFile}), /*agents=*/true);
    pod["subdomain"] = spec_.name;
    spec["template"] = Template(std::move(pod));
    return spec;
  }

  Json JobSet() const {
    Json job = JobSpec();
    job.erase("suspend");  // the JobSet's
    job.erase("ttlSecondsAfterFinished");
    job["template"]["spec"].erase("subdomain");
    const Json replicated = {{"name", "nodes"}, {"replicas", 1}, {"template", {{"spec", std::move(job)}}}};
    const Json spec = {
        {"suspend", true},
        {"network", {{"enableDNSHostnames", true}, {"subdomain", spec_.name}, {"publishNotReadyAddresses", true}}},
        {"ttlSecondsAfterFinished", kKeepSeconds},
        {"replicatedJobs", Json::array({replicated})}};
    return Object("jobset.x-k8s.io/v1alpha2", "JobSet", spec_.name, {{"spec", spec}});
  }

  Json MpiJob() const {
    Json launcher = PodSpec(Json::array({kMillrace, "job", "pod", kPodJobFile}), /*agents=*/false);
    launcher["containers"][0].erase("resources");  // the workers compute
    Json worker = PodSpec(Json::array({"/usr/sbin/sshd", "-De"}), /*agents=*/false);
    launcher.erase("restartPolicy");  // the MPI Operator sets it
    worker.erase("restartPolicy");
    Json replicas = {
        {"Launcher", {{"replicas", 1}, {"restartPolicy", "Never"}, {"template", Template(launcher)}}},
        {"Worker", {{"replicas", spec_.run.nodes}, {"restartPolicy", "OnFailure"}, {"template", Template(worker)}}}};
    const Json spec = {{"slotsPerWorker", spec_.run.processes_per_node},
                       {"runPolicy",
                        {{"cleanPodPolicy", "Running"},
                         {"backoffLimit", kMaxLaunchers},
                         {"ttlSecondsAfterFinished", kKeepSeconds},
                         {"suspend", true}}},
                       {"sshAuthMountPath", "/root/.ssh"},
                       {"mpiReplicaSpecs", std::move(replicas)}};
    return Object("kubeflow.org/v2beta1", "MPIJob", spec_.name, {{"spec", spec}});
  }

  Json Template(Json pod) const { return {{"metadata", Metadata()}, {"spec", std::move(pod)}}; }

  Json PodSpec(Json command, bool agents) const {
    Json volumes = Json::array(), mounts = Json::array();
    const auto add = [&](const char* name, const char* path, bool read_only, const char* kind, Json source) {
      volumes.push_back({{"name", name}, {kind, std::move(source)}});
      Json mount = {{"name", name}, {"mountPath", path}};
      if (read_only) mount["readOnly"] = true;
      mounts.push_back(std::move(mount));
    };
    constexpr int kOwnerOnly = 0400;  // with an fsGroup, Kubernetes lets the group read as well
    add("job", "/etc/millrace/job", true, "configMap", {{"name", spec_.name}});
    if (agents) {
      add("agents", "/etc/millrace/agents", true, "secret",
          {{"secretName", AgentSecret()}, {"defaultMode", kOwnerOnly}});
    }
    if (pods_.shared_memory > 0) {
      add("shared-memory", "/dev/shm", false, "emptyDir",
          {{"medium", "Memory"}, {"sizeLimit", std::to_string(pods_.shared_memory)}});
    }
    AddVolumes(volumes, mounts);

    Json env = Json::array({{{"name", "MILLRACE_STATE_DIR"}, {"value", kStateFolder}},
                            {{"name", "HOME"}, {"value", agents ? kStateFolder : "/root"}}});
    for (const auto& [name, value] : options_.env) env.push_back({{"name", name}, {"value", value}});
    Json container = {{"name", "millrace"}, {"image", pods_.image}, {"command", std::move(command)}};
    PutGiven(container, "imagePullPolicy", pods_.image_pull_policy);
    container["env"] = std::move(env);
    Json from = Json::array();
    for (const std::string& secret : pods_.env_from) from.push_back({{"secretRef", {{"name", secret}}}});
    PutGiven(container, "envFrom", std::move(from));
    if (!pods_.resources.empty()) {
      container["resources"] = {{"requests", TextObject(pods_.resources)}, {"limits", TextObject(pods_.resources)}};
    }
    container["volumeMounts"] = std::move(mounts);
    container["terminationMessagePolicy"] = "FallbackToLogsOnError";
    // sshd starts as root, and changes to the user who logs in.
    if (agents) {
      container["securityContext"] = {{"allowPrivilegeEscalation", false},
                                      {"capabilities", {{"drop", Json::array({"ALL"})}}}};
    }

    Json pod = {{"restartPolicy", "Never"},
                {"terminationGracePeriodSeconds", kPodLeaveSeconds},
                {"automountServiceAccountToken", false},
                {"enableServiceLinks", false}};
    if (agents) {
      pod["securityContext"] = {{"runAsUser", pods_.user},
                                {"runAsGroup", pods_.user},
                                {"fsGroup", pods_.user},
                                {"runAsNonRoot", pods_.user != 0},
                                {"seccompProfile", {{"type", "RuntimeDefault"}}}};
    }
    PutGiven(pod, "serviceAccountName", pods_.service_account);
    PutGiven(pod, "priorityClassName", pods_.priority);
    PutGiven(pod, "nodeSelector", TextObject(pods_.node_selector));
    PutGiven(pod, "tolerations", pods_.tolerations);
    Json pull = Json::array();
    for (const std::string& secret : pods_.image_pull_secrets) pull.push_back({{"name", secret}});
    PutGiven(pod, "imagePullSecrets", std::move(pull));
    pod["containers"] = Json::array({std::move(container)});
    pod["volumes"] = std::move(volumes);
    return pod;
  }

  /// A claim, a bucket (an inline volume of the CSI driver), or a volume as Kubernetes writes it.
  static Json VolumeSource(const Json& given) {
    const bool read_only = given.value("read_only", false);
    if (given.contains("claim")) {
      Json claim = {{"claimName", given["claim"]}};
      if (read_only) claim["readOnly"] = true;
      return {{"persistentVolumeClaim", std::move(claim)}};
    }
    if (!given.contains("bucket")) return given["source"];
    Json attributes = {{"bucketName", given["bucket"]}, {"authenticationSource", "secret"}};
    if (given.contains("prefix")) attributes["prefix"] = given["prefix"];
    if (!read_only) attributes["mountOptions"] = "allow-delete,allow-overwrite";
    Json csi = {{"driver", kCsiDriver},
                {"readOnly", read_only},
                {"nodePublishSecretRef", {{"name", given["secret"]}}},
                {"volumeAttributes", std::move(attributes)}};
    return {{"csi", std::move(csi)}};
  }

  /// What a program mounts elsewhere, as an element of run.volumes. REQUIRES: its URL is one of S3.
  Json VolumeOf(const FolderMount& mount) const {
    const object::Url url = object::ParseUrl(mount.url).value();
    Json volume = {{"mount_path", mount.path}, {"bucket", url.bucket}, {"secret", pods_.mounts_secret}};
    if (!url.key.empty()) volume["prefix"] = url.key.ends_with('/') ? url.key : url.key + '/';
    if (mount.read_only) volume["read_only"] = true;
    return volume;
  }

  void AddVolumes(Json& volumes, Json& mounts) const {
    int number = 0;
    Json all = pods_.volumes;
    for (const FolderMount& mount : PodMounts(spec_)) all.push_back(VolumeOf(mount));
    for (const Json& given : all) {
      const std::string name = fmt::format("volume-{}", ++number);
      Json volume = VolumeSource(given);
      volume["name"] = name;
      volumes.push_back(std::move(volume));
      Json mount = {{"name", name}, {"mountPath", given["mount_path"]}};
      if (given.contains("read_only")) mount["readOnly"] = given["read_only"];
      if (given.contains("sub_path")) mount["subPath"] = given["sub_path"];
      mounts.push_back(std::move(mount));
    }
  }

  const Spec& spec_;
  const KubernetesSpec& pods_;
  const std::string& space_;
  const PodOptions& options_;
};

bool IsPlainYaml(const std::string& text) {
  // Letters first, and nothing that YAML reads as something else than text.
  constexpr std::string_view kWords[] = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"};
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0 &&
         std::ranges::find(kWords, lower) == std::end(kWords) && std::ranges::all_of(text, [](unsigned char c) {
           return c < 128 && (std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/');
         });
}

std::string YamlText(const std::string& text) { return IsPlainYaml(text) ? text : DumpJson(text); }

void AddYaml(std::string& out, const Json& value, const std::string& indent);

/// Adds the value behind "key:" or "-".
void AddYamlMember(std::string& out, const Json& value, const std::string& indent) {
  if (value.is_string() && value.get_ref<const std::string&>().ends_with('\n')) {
    out += " |\n";  // a file
    const std::string& text = value.get_ref<const std::string&>();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      out += end == at ? "\n" : fmt::format("{}{}\n", indent, std::string_view(text).substr(at, end - at));
      at = end + 1;
    }
  } else if (!value.is_structured() || value.empty()) {
    out += fmt::format(" {}\n", value.is_string() ? YamlText(value.get<std::string>()) : DumpJson(value));
  } else {
    out += '\n';
    AddYaml(out, value, indent);
  }
}

void AddYaml(std::string& out, const Json& value, const std::string& indent) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      out += fmt::format("{}{}:", indent, YamlText(key));
      AddYamlMember(out, member, indent + (member.is_array() ? "" : "  "));
    }
    return;
  }
  for (const Json& element : value) {
    if (element.is_object() && !element.empty()) {
      const std::size_t start = out.size();
      AddYaml(out, element, indent + "  ");
      out[start + indent.size()] = '-';
    } else {
      out += indent + "-";
      AddYamlMember(out, element, indent + "  ");
    }
  }
}

/// The label by which a controller marks the pods of its job.
std::string JobLabel(const std::string& launcher) {
  return launcher == "mpijob"   ? "training.kubeflow.org/job-name"
         : launcher == "jobset" ? "jobset.sigs.k8s.io/jobset-name"
                                : "batch.kubernetes.io/job-name";
}

}  // namespace

std::vector<ClusterObject> RenderObjects(const Spec& spec, const std::string& space, const PodOptions& options) {
  return Renderer(spec, space, options).Render();
}

Json SuspendPatch(const std::string& launcher, bool suspend) {
  const Json suspended = {{"suspend", suspend}};
  return {{"spec", launcher == "mpijob" ? Json{{"runPolicy", suspended}} : suspended}};
}

std::string JobPath(const std::string& launcher, const std::string& space, const std::string& name) {
  return KindPath(launcher, space) + "/" + name;
}

std::string PodSelector(const std::string& launcher, const std::string& name) {
  return fmt::format("{}={}", JobLabel(launcher), name);
}

std::vector<RemoteNode> PodNodes(const Spec& spec, const std::string& millrace) {
  // A JobSet's jobs are named NAME-nodes-0.
  const std::string prefix = spec.run.launcher == "jobset" ? spec.name + "-nodes-0" : spec.name;
  std::vector<RemoteNode> nodes;
  for (int index = 0; index < spec.run.nodes; ++index) {
    const std::string pod = fmt::format("{}-{}", prefix, index), host = fmt::format("{}.{}", pod, spec.name);
    std::vector<std::string> command = {millrace, "job", "agent"};
    if (index > 0) {
      for (const std::string& word : {std::string("--connect"), fmt::format("{}:{}", host, kAgentPort),
                                      std::string("--key-file"), std::string(kAgentKeyFile)}) {
        command.push_back(word);
      }
    }
    nodes.push_back({.name = pod, .address = host, .command = std::move(command)});
  }
  return nodes;
}

Status NameMpiHosts(RunSpec& run) {
  constexpr const char* kHostfile = "/etc/mpi/hostfile";
  constexpr std::uint64_t kMaxHostfileBytes = 4 * kMiB;
  const std::string text = MR_TRY(ReadFile(kHostfile, kMaxHostfileBytes));
  run.ssh.hosts.clear();
  for (HostSlots& host : MR_TRY(ParseHostfile(text, kHostfile))) run.ssh.hosts.push_back(std::move(host.host));
  if (static_cast<int>(run.ssh.hosts.size()) == run.nodes) return {};
  return Fail(Code::kInvalidArgument, "{} names {} workers, but run.nodes is {}", kHostfile, run.ssh.hosts.size(),
              run.nodes);
}

std::string ToYaml(const Json& value) {
  std::string out;
  AddYaml(out, value, "");
  return out;
}

}  // namespace millrace::jobs
