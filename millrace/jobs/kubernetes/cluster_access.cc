#include "millrace/jobs/kubernetes/cluster_access.h"

#include <filesystem>
#include <vector>

#include "millrace/base/config.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/json.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

namespace fs = std::filesystem;
using config::Node;

constexpr std::uint64_t kMaxConfigBytes = 16 * kMiB;
constexpr const char* kServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount";

/// One file of KUBECONFIG. Its relative paths are relative to its folder.
struct ConfigFile {
  fs::path folder;
  config::Document document;
};

/// An entry of a list of named things: contexts, clusters, users.
struct NamedEntry {
  Node node;  ///< the map that the entry names
  fs::path folder;
};

Result<std::string> TextOf(const Node& map, std::string_view key) {
  const Node node = map[key];
  return node ? node.String() : std::string();
}

/// The first file that has a name wins, as with kubectl.
Result<NamedEntry> Find(const std::vector<ConfigFile>& files, std::string_view list, std::string_view member,
                        const std::string& name) {
  for (const ConfigFile& file : files) {
    for (const Node& entry : file.document.Root()[list].Elements()) {
      const auto found = entry["name"].String();
      if (found && *found == name) return NamedEntry{entry[member], file.folder};
    }
  }
  return Fail(Code::kInvalidArgument,
              "the kubeconfig has no \"{}\" among its {}; `kubectl config view` shows what it has", name, list);
}

class AccessReader {
 public:
  Result<ClusterAccess> Read(const std::vector<ConfigFile>& files, std::string context) {
    for (auto file = files.begin(); context.empty() && file != files.end(); ++file) {
      context = MR_TRY(TextOf(file->document.Root(), "current-context"));
    }
    if (context.empty()) return Fail(Code::kInvalidArgument, "the kubeconfig has no current-context: set run.context");
    access_.name = context;
    const NamedEntry chosen = MR_TRY(Find(files, "contexts", "context", context));
    access_.space = MR_TRY(TextOf(chosen.node, "namespace"));
    if (access_.space.empty()) access_.space = "default";
    const std::string cluster = MR_TRY(TextOf(chosen.node, "cluster"));
    const NamedEntry server = MR_TRY(Find(files, "clusters", "cluster", cluster));
    MR_TRY(ReadServer(server));
    const std::string user = MR_TRY(TextOf(chosen.node, "user"));
    if (user.empty()) return std::move(access_);
    const NamedEntry who = MR_TRY(Find(files, "users", "user", user));
    MR_TRY(ReadUser(who));
    return std::move(access_);
  }

 private:
  Status ReadServer(const NamedEntry& entry) {
    access_.server = MR_TRY(TextOf(entry.node, "server"));
    while (access_.server.ends_with('/')) access_.server.pop_back();
    if (!access_.server.starts_with("https://") && !access_.server.starts_with("http://")) {
      return Fail(entry.node["server"].Invalid("should be a URL, such as https://host:6443"));
    }
    for (const char* key : {"proxy-url", "tls-server-name"}) {
      if (entry.node[key]) return Fail(entry.node[key].Invalid("is not supported").WithCode(Code::kUnsupported));
    }
    access_.ca_file = MR_TRY(FileOf(entry, "certificate-authority", "ca.pem"));
    if (entry.node["insecure-skip-tls-verify"]) {
      access_.verify_tls = !MR_TRY(entry.node["insecure-skip-tls-verify"].Bool());
    }
    return {};
  }

  Status ReadUser(const NamedEntry& entry) {
    for (const char* key : {"auth-provider", "username", "password", "as"}) {
      if (entry.node[key]) {
        return Fail(entry.node[key]
                        .Invalid("is not supported; use token, tokenFile, client-certificate or exec")
                        .WithCode(Code::kUnsupported));
      }
    }
    access_.token = MR_TRY(TextOf(entry.node, "token"));
    access_.token_file = MR_TRY(TextOf(entry.node, "tokenFile"));
    if (!access_.token_file.empty()) access_.token_file = (entry.folder / access_.token_file).string();
    access_.client_certificate_file = MR_TRY(FileOf(entry, "client-certificate", "client.pem"));
    access_.client_key_file = MR_TRY(FileOf(entry, "client-key", "client-key.pem"));
    return entry.node["exec"] ? RunPlugin(entry.node["exec"], entry.folder) : Status();
  }

  /// Returns the path under `key`, or that of a new file with what is under KEY-data.
  Result<std::string> FileOf(const NamedEntry& entry, const std::string& key, const char* name) {
    const std::string data = MR_TRY(TextOf(entry.node, key + "-data"));
    if (!data.empty()) {
      const auto bytes = Base64Decode(data);
      if (!bytes) return Fail(entry.node[key + "-data"].Invalid("is not base64"));
      return Keep(name, *bytes);
    }
    const std::string path = MR_TRY(TextOf(entry.node, key));
    return path.empty() ? path : (entry.folder / path).string();
  }

  Result<std::string> Keep(const char* name, ByteSpan bytes) {
    if (!access_.secrets) access_.secrets = std::make_shared<TempDir>(MR_TRY(TempDir::Create()));
    const fs::path path = access_.secrets->path() / name;
    constexpr mode_t kOwnerOnly = 0600;
    MR_TRY(WriteFileAtomic(path, bytes, kOwnerOnly));
    return path.string();
  }

  /// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
  Status RunPlugin(const Node& exec, const fs::path& folder) {
    Subprocess::Options options;
    std::string command = MR_TRY(TextOf(exec, "command"));
    if (command.empty()) return Fail(exec.Invalid("has no command"));
    if (command.find('/') != std::string::npos) command = (folder / command).string();
    options.argv = {command};
    for (const Node& argument : exec["args"].Elements()) options.argv.push_back(MR_TRY(argument.String()));
    for (const Node& variable : exec["env"].Elements()) {
      const std::string name = MR_TRY(TextOf(variable, "name"));
      options.env[name] = MR_TRY(TextOf(variable, "value"));
    }
    const std::string version = MR_TRY(TextOf(exec, "apiVersion"));
    options.env["KUBERNETES_EXEC_INFO"] =
        DumpJson({{"apiVersion", version}, {"kind", "ExecCredential"}, {"spec", {{"interactive", false}}}});
    const auto ran = Subprocess::Run(std::move(options));
    if (!ran) return Fail(ran.error().Context("the credential plug-in of the kubeconfig"));
    if (!ran->state.ok()) {
      return Fail(Code::kPermissionDenied,
                  "{}, the credential plug-in of the kubeconfig, ended with {}; run it by hand to see why", command,
                  ran->state.ToString());
    }
    const Json credential = MR_TRY(ParseJson(ran->stdout_text, "the output of " + command));
    const Json* status = JsonFind(credential, "status");
    if (status == nullptr) {
      return Fail(Code::kInvalidArgument, "{} printed no credential; expected an ExecCredential with a status",
                  command);
    }
    if (JsonFind(*status, "token") != nullptr) access_.token = MR_TRY(JsonString(*status, "token"));
    if (JsonFind(*status, "clientCertificateData") != nullptr) {
      const std::string certificate = MR_TRY(JsonString(*status, "clientCertificateData"));
      access_.client_certificate_file = MR_TRY(Keep("client.pem", AsBytes(certificate)));
      const std::string key = MR_TRY(JsonString(*status, "clientKeyData"));
      access_.client_key_file = MR_TRY(Keep("client-key.pem", AsBytes(key)));
    }
    return {};
  }

  ClusterAccess access_;
};

Result<std::optional<ClusterAccess>> InPod(const Environment& environment) {
  const auto host = environment("KUBERNETES_SERVICE_HOST"), port = environment("KUBERNETES_SERVICE_PORT");
  if (!host || !port) return std::optional<ClusterAccess>();
  const fs::path folder = kServiceAccount;
  ClusterAccess access{.name = kThisCluster};
  access.server = host->find(':') == std::string::npos ? fmt::format("https://{}:{}", *host, *port)
                                                       : fmt::format("https://[{}]:{}", *host, *port);
  access.space = MR_TRY(ReadFile(folder / "namespace", kMaxConfigBytes));
  access.token_file = folder / "token";
  access.ca_file = folder / "ca.crt";
  return std::optional(std::move(access));
}

}  // namespace

Result<ClusterAccess> FindCluster(const std::string& context, const Environment& environment) {
  std::vector<fs::path> paths;
  const std::string named = environment("KUBECONFIG").value_or("");
  for (const std::string_view path : Split(named, ':')) {
    if (!path.empty()) paths.emplace_back(path);
  }
  if (const auto home = environment("HOME"); paths.empty() && home) paths.push_back(fs::path(*home) / ".kube/config");
  std::vector<ConfigFile> files;
  for (const fs::path& path : paths) {
    const auto text = ReadFile(path, kMaxConfigBytes);
    if (!text && text.error().code() == Code::kNotFound) continue;
    if (!text) return Fail(text.error());
    auto document = MR_TRY(config::Document::Parse(*text, path.string()));
    files.push_back({fs::absolute(path).parent_path(), std::move(document)});
  }
  if (!files.empty()) return AccessReader().Read(files, context);
  if (named.empty()) {
    if (auto access = MR_TRY(InPod(environment))) return *std::move(access);
  }
  return Fail(Code::kNotFound, "no cluster is known here: {}; set KUBECONFIG to your kubeconfig",
              named.empty() ? "there is no ~/.kube/config, and this is no pod" : named + " does not exist");
}

}  // namespace millrace::jobs
