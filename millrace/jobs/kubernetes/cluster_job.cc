#include "millrace/jobs/kubernetes/cluster_job.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/jobs/launchers/line_buffer.h"

namespace millrace::jobs {
namespace {

using Phase = ClusterJob::Phase;

constexpr std::string_view kContainer = "millrace";
/// For an old job to leave: its pods have three minutes to end.
constexpr Duration kGonePatience = std::chrono::minutes(4);
constexpr const char* kStopped = "stopped; the same command continues from the last checkpoint";
constexpr Duration kClusterInterval = std::chrono::milliseconds(200);

/// Returns the text at a path of members, or "".
std::string TextAt(const Json& json, std::initializer_list<std::string_view> members) {
  const Json* at = &json;
  for (const std::string_view member : members) {
    at = JsonFind(*at, member);
    if (at == nullptr) return "";
  }
  return at->is_string() ? at->get<std::string>() : "";
}

const Json& ListAt(const Json& json, std::initializer_list<std::string_view> members) {
  static const Json kNone = Json::array();
  const Json* at = &json;
  for (const std::string_view member : members) {
    at = JsonFind(*at, member);
    if (at == nullptr) return kNone;
  }
  return at->is_array() ? *at : kNone;
}

/// Returns the condition of one of these types that is true.
const Json* ConditionOf(const Json& object, std::initializer_list<std::string_view> types) {
  for (const Json& condition : ListAt(object, {"status", "conditions"})) {
    const std::string type = TextAt(condition, {"type"});
    if (TextAt(condition, {"status"}) == "True" && std::ranges::find(types, type) != types.end()) return &condition;
  }
  return nullptr;
}

bool IsSuspended(const Json& job) {
  const Json* spec = JsonFind(job, "spec");
  const Json* policy = spec == nullptr ? nullptr : JsonFind(*spec, "runPolicy");
  const Json* suspend = spec == nullptr ? nullptr : JsonFind(policy == nullptr ? *spec : *policy, "suspend");
  return suspend != nullptr && suspend->is_boolean() && suspend->get<bool>();
}

/// Returns why a pod does not run, in Kubernetes' words.
std::string WhyPending(const Json& pod) {
  for (const Json& condition : ListAt(pod, {"status", "conditions"})) {
    if (TextAt(condition, {"type"}) == "PodScheduled" && TextAt(condition, {"status"}) == "False") {
      const std::string message = TextAt(condition, {"message"});
      return message.empty() ? TextAt(condition, {"reason"}) : message;
    }
  }
  for (const char* containers : {"initContainerStatuses", "containerStatuses"}) {
    for (const Json& container : ListAt(pod, {"status", containers})) {
      const std::string reason = TextAt(container, {"state", "waiting", "reason"});
      const std::string message = TextAt(container, {"state", "waiting", "message"});
      if (!reason.empty()) return message.empty() ? reason : fmt::format("{}: {}", reason, message);
    }
  }
  return "its containers are being made";
}

bool IsTerminating(const Json& pod) { return !TextAt(pod, {"metadata", "deletionTimestamp"}).empty(); }

bool IsSupervisor(const Json& pod) {
  return TextAt(pod, {"metadata", "labels", "batch.kubernetes.io/job-completion-index"}) == "0" ||
         TextAt(pod, {"metadata", "labels", "training.kubeflow.org/job-role"}) == "launcher";
}

/// Returns the error with which the program of a pod ended, or "".
std::string LastError(const Json& pod) {
  constexpr std::string_view kPrefix = "millrace: ";
  std::string last;
  for (const Json& container : ListAt(pod, {"status", "containerStatuses"})) {
    const std::string message = TextAt(container, {"state", "terminated", "message"});  // the end of its log
    for (const std::string_view line : Split(message, '\n')) {
      if (line.starts_with(kPrefix)) last = line.substr(kPrefix.size());
    }
  }
  return last;
}

/// Returns the last warning about an object: why it has no pods.
std::string LastWarning(ClusterApi& api, const ClusterJobName& job) {
  const auto events = api.Get(fmt::format(
      "/api/v1/namespaces/{}/events?fieldSelector=involvedObject.name%3D{},type%3DWarning", job.space, job.name));
  if (!events || !*events) return "";  // who asks may lack the right to see events
  std::string last, at;
  for (const Json& event : ListAt(**events, {"items"})) {
    const std::string time = TextAt(event, {"lastTimestamp"});
    if (time >= at) last = TextAt(event, {"message"});
    at = std::max(at, time);
  }
  return last;
}

/// Returns why a job of this uid has not left its queue, in Kueue's words, or "".
std::string WhyQueued(ClusterApi& api, const ClusterJobName& job, const std::string& uid) {
  constexpr const char* kGroup = "/apis/kueue.x-k8s.io";
  const auto group = api.Get(kGroup);
  if (!group) return "";
  if (!*group) return "the cluster has no Kueue, which would let it start";
  // Each release of Kueue serves other versions of its objects.
  const auto workloads =
      api.Get(fmt::format("{}/{}/namespaces/{}/workloads?labelSelector=kueue.x-k8s.io%2Fjob-uid%3D{}", kGroup,
                          TextAt(**group, {"preferredVersion", "version"}), job.space, uid));
  if (!workloads || !*workloads) return "";  // who asks may lack the right to see them
  for (const Json& workload : ListAt(**workloads, {"items"})) {
    for (const Json& condition : ListAt(workload, {"status", "conditions"})) {
      if (TextAt(condition, {"type"}) == "QuotaReserved" && TextAt(condition, {"status"}) == "False") {
        return TextAt(condition, {"message"});
      }
    }
  }
  return "";
}

/// Checks that objects of the same names, if there are any, were made for this job: others must not be changed.
Status CheckNames(ClusterApi& api, const ClusterJobName& job, const std::vector<ClusterObject>& objects) {
  for (const ClusterObject& object : objects) {
    const std::string path = object.path + "/" + object.name();
    const auto found = MR_TRY(api.Get(path));
    if (!found || TextAt(*found, {"metadata", "labels", kJobNameLabel}) == job.name) continue;
    return Fail(Code::kPreconditionFailed,
                "{} is in the cluster already, and Millrace did not make it: give the job another name or namespace",
                path);
  }
  return {};
}

/// Where the last call of CollectLog() stopped.
struct LogPosition {
  std::string pod, time;
};

LogPosition ReadPosition(const std::filesystem::path& path) {
  constexpr std::uint64_t kMaxBytes = 4096;
  const auto text = ReadFile(path, kMaxBytes);
  const auto json = text ? ParseJson(*text, path.string()) : Result<Json>(Json::object());
  return json ? LogPosition{.pod = TextAt(*json, {"pod"}), .time = TextAt(*json, {"time"})} : LogPosition{};
}

/// The logs of a job's folder, opened when something is written.
class FolderLogs {
 public:
  explicit FolderLogs(std::filesystem::path folder) : folder_(std::move(folder)) {}
  Status Append(const std::string& file, std::string_view line) {
    if (!WriteLine(MR_TRY(Open(file)), std::string(line))) {
      return Fail(ErrnoError(errno, fmt::format("cannot write {}", (folder_ / file).string())));
    }
    return {};
  }
  /// Returns the file's descriptor. Makes the file if it is not there.
  Result<int> Open(const std::string& file) {
    auto found = files_.find(file);
    if (found == files_.end()) {
      auto opened = MR_TRY(OpenFile(folder_ / file, O_WRONLY | O_CREAT | O_APPEND));
      found = files_.emplace(file, std::move(opened)).first;
    }
    return found->second.get();
  }

 private:
  const std::filesystem::path folder_;
  std::map<std::string, UniqueFd> files_;
};

/// Takes "[WORD] " from the beginning of a line. Returns WORD, or "".
std::string_view TakeTag(std::string_view& line) {
  const std::size_t end = line.find("] ");
  if (!line.starts_with('[') || end == std::string_view::npos) return "";
  const std::string_view tag = line.substr(1, end - 1);
  line.remove_prefix(end + 2);
  return tag;
}

/// Handles one line of the supervisor.
Status Keep(std::string_view line, FolderLogs& logs, std::optional<JobStatus>& last) {
  const std::string_view whole = line;
  std::string_view tag = TakeTag(line);
  if (tag == "status") {
    auto json = ParseJson(line, "a status");
    auto status = json ? JobStatus::FromJson(*json, "a status") : Result<JobStatus>(Fail(json.error()));
    if (status) last = *std::move(status);
    return {};
  }
  if (!tag.starts_with("rank ")) return logs.Append("supervisor.log", tag == "supervisor" ? line : whole);
  tag.remove_prefix(5);
  const bool is_error = tag.ends_with('!');
  if (is_error) tag.remove_suffix(1);
  unsigned rank = 0;
  const auto [end, error] = std::from_chars(tag.data(), tag.data() + tag.size(), rank);
  if (error != std::errc() || end != tag.data() + tag.size()) return {};
  return logs.Append(fmt::format("rank-{}.{}", rank, is_error ? "err" : "out"), line);
}

}  // namespace

Result<ClusterJobName> ClusterJobName::Parse(const std::string& launcher, const std::string& id) {
  const std::size_t name = id.rfind('/');
  const std::size_t space = name == std::string::npos || name == 0 ? std::string::npos : id.rfind('/', name - 1);
  if (space == std::string::npos) return Fail(Code::kCorrupt, "\"{}\" does not name a job of a cluster", id);
  return ClusterJobName{.launcher = launcher,
                        .context = id.substr(0, space),
                        .space = id.substr(space + 1, name - space - 1),
                        .name = id.substr(name + 1)};
}

Result<ClusterJob> FindClusterJob(ClusterApi& api, const ClusterJobName& job) {
  ClusterJob found;
  const auto object = MR_TRY(api.Get(JobPath(job.launcher, job.space, job.name)));
  if (!object) return found;
  const auto pods =
      MR_TRY(api.Get(fmt::format("/api/v1/namespaces/{}/pods?labelSelector={}", job.space,
                                 PercentEncode(PodSelector(job.launcher, job.name), /*keep_slash=*/false))));
  const Json* supervisor = nullptr;
  bool some_run = false;
  std::string waiting;
  const Json none = Json::object();
  for (const Json& pod : ListAt(pods ? *pods : none, {"items"})) {
    const std::string phase = TextAt(pod, {"status", "phase"});
    some_run = some_run || phase == "Running";
    if (phase == "Pending" && !IsTerminating(pod) && waiting.empty()) {
      waiting = fmt::format("pod {} waits: {}", TextAt(pod, {"metadata", "name"}), WhyPending(pod));
    }
    if (!IsSupervisor(pod)) continue;
    const auto made = [](const Json& each) { return TextAt(each, {"metadata", "creationTimestamp"}); };
    if (supervisor == nullptr || made(pod) >= made(*supervisor)) supervisor = &pod;
  }
  if (supervisor != nullptr) {
    found.supervisor_pod = TextAt(*supervisor, {"metadata", "name"});
    found.supervisor_uid = TextAt(*supervisor, {"metadata", "uid"});
  }
  const std::string phase = supervisor == nullptr ? "" : TextAt(*supervisor, {"status", "phase"});
  found.is_queued = !TextAt(*object, {"metadata", "labels", kQueueLabel}).empty();
  found.has_log = !phase.empty() && phase != "Pending";
  if (ConditionOf(*object, {"Complete", "Completed", "Succeeded", "SuccessCriteriaMet"}) != nullptr) {
    found.phase = Phase::kDone;
  } else if (const Json* failure = ConditionOf(*object, {"Failed", "FailureTarget"})) {
    found.phase = Phase::kFailed;
    found.reason = TextAt(*failure, {"message"});
    const std::string error = supervisor == nullptr ? "" : LastError(*supervisor);
    if (!error.empty()) found.reason = error;
  } else if (IsTerminating(*object)) {
    found.phase = Phase::kLeaves;
  } else if (IsSuspended(*object)) {
    found.phase = some_run ? Phase::kLeaves : Phase::kHeld;
    if (found.is_queued && !some_run) found.reason = WhyQueued(api, job, TextAt(*object, {"metadata", "uid"}));
  } else if (phase == "Running") {
    found.phase = IsTerminating(*supervisor) ? Phase::kLeaves : Phase::kRuns;
    found.reason = waiting;
  } else {
    found.phase = Phase::kWaits;
    found.reason = waiting.empty() && supervisor == nullptr ? LastWarning(api, job) : waiting;
  }
  return found;
}

Status CreateClusterJob(ClusterApi& api, const ClusterJobName& job, const std::vector<ClusterObject>& objects,
                        bool is_queued) {
  MR_TRY(CheckNames(api, job, objects));
  const std::string path = JobPath(job.launcher, job.space, job.name);
  ClusterJob before = MR_TRY(FindClusterJob(api, job));
  const TimePoint until = SystemClock().Now() + kGonePatience;
  const auto await = [&] { return SystemClock().Now() < until && SystemClock().SleepFor(kClusterInterval); };
  while (before.phase == Phase::kLeaves && await()) before = MR_TRY(FindClusterJob(api, job));
  const bool has_ended = before.phase == Phase::kDone || before.phase == Phase::kFailed || before.phase == Phase::kHeld;
  if (before.phase != Phase::kGone && !has_ended) {
    return Fail(Code::kBusy, "{} runs in {} already; delete it there, or `millrace job stop {}`", job.name, job.space,
                job.name);
  }
  if (has_ended) {
    MR_TRY(api.Delete(path));
    while (MR_TRY(api.Get(path))) {
      if (!await()) {
        return Fail(Code::kBusy,
                    "the old {} is still there, being deleted; try again when `kubectl get` shows it no more", path);
      }
    }
  }
  const ClusterObject& owner = objects.front();
  const Json made = MR_TRY(api.Apply(owner.path + "/" + owner.name(), owner.body));
  const auto complete = [&]() -> Status {
    const Json reference = {{"apiVersion", owner.body["apiVersion"]},
                            {"kind", owner.body["kind"]},
                            {"name", job.name},
                            {"uid", TextAt(made, {"metadata", "uid"})}};
    for (auto each = objects.begin() + 1; each != objects.end(); ++each) {
      Json body = each->body;
      body["metadata"]["ownerReferences"] = Json::array({reference});
      MR_TRY(api.Apply(each->path + "/" + each->name(), body));
    }
    if (is_queued) return {};
    MR_TRY(api.Merge(path, SuspendPatch(job.launcher, false)));
    return {};
  }();
  if (!complete) (void)api.Delete(path);
  return complete;
}

Status StopClusterJob(ClusterApi& api, const ClusterJobName& job, const ClusterJob& found) {
  const std::string path = JobPath(job.launcher, job.space, job.name);
  if (found.is_queued) return api.Delete(path, /*belongings_first=*/true);
  MR_TRY(api.Merge(path, SuspendPatch(job.launcher, true)));
  return {};
}

Status DeleteClusterJob(ClusterApi& api, const ClusterJobName& job) {
  return api.Delete(JobPath(job.launcher, job.space, job.name), /*belongings_first=*/true);
}

std::string RankLine(int rank, bool is_error, std::string_view text) {
  return fmt::format("[rank {}{}] {}", rank, is_error ? "!" : "", text);
}

std::string StatusLine(const JobStatus& status) { return "[status] " + DumpJson(status.ToJson()); }

Result<CollectedLog> CollectLog(ClusterApi& api, const ClusterJobName& job, const ClusterJob& found,
                                const std::filesystem::path& folder) {
  CollectedLog news;
  if (!found.has_log) return news;
  const UniqueFd lock = MR_TRY(OpenFile(folder / "collect.lock", O_RDWR | O_CREAT));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return news;
  const std::filesystem::path position_file = folder / "collected";
  LogPosition position = ReadPosition(position_file);
  news.of_new_pod = position.pod != found.supervisor_uid;
  if (news.of_new_pod) position = {.pod = found.supervisor_uid, .time = ""};
  std::string query = fmt::format("container={}&timestamps=true", kContainer);
  if (!position.time.empty()) query += "&sinceTime=" + PercentEncode(position.time, /*keep_slash=*/false);
  const auto text =
      MR_TRY(api.Text(fmt::format("/api/v1/namespaces/{}/pods/{}/log?{}", job.space, found.supervisor_pod, query)));
  if (!text) return CollectedLog();  // the container has not started
  FolderLogs logs(folder / "logs");
  for (std::string_view line : Split(*text, '\n')) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) continue;
    const std::string_view time = line.substr(0, space);
    if (time <= position.time) continue;  // the API counts in seconds
    MR_TRY(Keep(line.substr(space + 1), logs, news.status));
    position.time = time;
  }
  // A rank that has written nothing has empty logs.
  const std::size_t ranks = news.status ? news.status->ranks.size() : 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (const char* suffix : {"out", "err"}) MR_TRY(logs.Open(fmt::format("rank-{}.{}", rank, suffix)));
  }
  const std::string noted = DumpJson({{"pod", position.pod}, {"time", position.time}});
  MR_TRY(WriteFileAtomic(position_file, AsBytes(noted)));
  return news;
}

void ApplyClusterState(JobStatus& status, const ClusterJobName& job, const ClusterJob& found, bool stop_requested) {
  const auto set = [&](const char* state, std::string message) {
    status.state = state;
    status.message = std::move(message);
  };
  const std::string where = fmt::format("{} of namespace {}", job.name, job.space);
  switch (found.phase) {
    case Phase::kGone:
      if (status.active() && stop_requested) {
        set("interrupted", kStopped);
      } else if (status.active()) {
        set("lost", fmt::format("{} is gone from Kubernetes; its last words: {}", where, status.message));
      }
      return;
    case Phase::kHeld:
      if (stop_requested) {
        if (status.active()) set("interrupted", kStopped);
      } else {
        set("queued", found.is_queued && !found.reason.empty()
                          ? fmt::format("{} waits in its queue: {}", where, found.reason)
                          : fmt::format("{} is suspended: a queue has not admitted it, or someone holds it", where));
        status.ranks.clear();
      }
      return;
    case Phase::kWaits:
      set("queued", fmt::format("{} waits{}", where, found.reason.empty() ? "" : ": " + found.reason));
      status.ranks.clear();
      return;
    case Phase::kRuns:
      if (status.state == "queued") set("starting", fmt::format("pod {} runs", found.supervisor_pod));
      if ((status.state == "starting" || status.state == "restarting") && !found.reason.empty()) {
        status.message = found.reason;
      }
      return;
    case Phase::kLeaves:
      if (status.active() || !stop_requested) status.state = "stopping";
      return;
    case Phase::kDone:
      if (status.state != "done") set("done", "all ranks finished");
      return;
    case Phase::kFailed:
      if (status.state != "failed") set("failed", found.reason.empty() ? status.message : found.reason);
      return;
  }
}

}  // namespace millrace::jobs
