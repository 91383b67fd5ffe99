#include "millrace/csi/mounter/daemon_plan.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/text.h"

namespace millrace::csi {
namespace {

constexpr char kPlanFormat[] = "millrace-csi-daemon";

Result<std::vector<std::string>> Texts(const Json& json, std::string_view key) {
  const Json* list = JsonFind(json, key);
  if (list == nullptr || !list->is_array()) return Fail(Code::kCorrupt, "a plan without {}", key);
  std::vector<std::string> texts;
  for (const Json& each : *list) {
    if (!each.is_string()) return Fail(Code::kCorrupt, "a plan whose {} are no texts", key);
    texts.push_back(each.get<std::string>());
  }
  return texts;
}

constexpr std::uint64_t kMaxLogBytes = 4 * kMiB;
constexpr Duration kEndTimeout = std::chrono::seconds(5);  // between the closing of its report and its end

/// The last line that the daemon logged after the first `offset` bytes, without the program's name.
std::string LastLine(const std::filesystem::path& log, std::uint64_t offset) {
  const std::string text = ReadFile(log, kMaxLogBytes).value_or("");
  std::string_view rest = Trim(std::string_view(text).substr(std::min<std::size_t>(offset, text.size())));
  rest = rest.substr(rest.rfind('\n') + 1);
  constexpr std::string_view kProgram = "millrace: ";
  if (rest.starts_with(kProgram)) rest.remove_prefix(kProgram.size());
  return std::string(rest);
}

/// The inverse of ToExitStatus, as far as it has one.
Code CodeOf(const ExitState& state) {
  if (state.signal != 0) return Code::kUnavailable;
  switch (state.exit_code) {
    case 2:
      return Code::kInvalidArgument;
    case 4:
      return Code::kNotFound;
    case 5:
      return Code::kPermissionDenied;
    default:
      return Code::kUnavailable;
  }
}

/// Waits for the word that BecomeDaemon writes. Returns false at the end of the pipe: the daemon ended.
Result<bool> AwaitLive(int fd, Duration timeout, const std::stop_token& stop) {
  const Deadline deadline = Deadline::After(SystemClock(), timeout);
  while (!deadline.Passed(SystemClock())) {
    constexpr int kPollMs = 100;  // bounds how late deadline and stop are noticed
    const bool stopped = stop.stop_requested();
    pollfd readable{fd, POLLIN, 0};
    if (::poll(&readable, 1, stopped ? 0 : kPollMs) <= 0) {
      // One that is live already is kept.
      if (stopped) return Fail(Code::kCancelled, "the start of the mount was cancelled");
      continue;
    }
    std::array<char, 16> word{};
    const ssize_t n = ::read(fd, word.data(), word.size());
    if (n < 0 && errno == EINTR) continue;
    return n > 0;
  }
  return Fail(Code::kDeadlineExceeded, "the mount was not there within {}", FormatDuration(timeout));
}

}  // namespace

std::string DaemonPlan::Encode() const {
  Json json = {{"format", kPlanFormat},
               {"volume", volume},
               {"target", target},
               {"url", url},
               {"argv", process.argv},
               {"unset", process.unset_env},
               {"log", process.stdout_file.string()}};
  json["environment"] = Json::object();
  for (const auto& [name, value] : process.env) json["environment"][name] = value;
  return DumpJson(json);
}

Result<DaemonPlan> DaemonPlan::Decode(std::string_view text) {
  const Json json = MR_TRY(ParseJson(text, "a plan"));
  if (MR_TRY(JsonString(json, "format")) != kPlanFormat) return Fail(Code::kCorrupt, "a plan of another format");
  DaemonPlan plan;
  plan.volume = MR_TRY(JsonString(json, "volume"));
  plan.target = MR_TRY(JsonString(json, "target"));
  plan.url = MR_TRY(JsonString(json, "url"));
  Subprocess::Options& process = plan.process;
  process.argv = MR_TRY(Texts(json, "argv"));
  process.unset_env = MR_TRY(Texts(json, "unset"));
  process.stdout_file = process.stderr_file = MR_TRY(JsonString(json, "log"));
  process.working_directory = "/";
  process.die_with_parent = false;
  const Json* environment = JsonFind(json, "environment");
  if (environment == nullptr || !environment->is_object() || process.argv.empty()) {
    return Fail(Code::kCorrupt, "a plan that starts nothing");
  }
  for (const auto& [name, value] : environment->items()) {
    if (!value.is_string()) return Fail(Code::kCorrupt, "a plan whose environment is no text");
    process.env[name] = value.get<std::string>();
  }
  return plan;
}

Result<Subprocess> StartMountDaemon(Subprocess::Options options, const std::filesystem::path& log, Duration timeout,
                                    const std::stop_token& stop) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Fail(ErrnoError(errno, "cannot make a pipe"));
  UniqueFd from_daemon(ends[0]), to_parent(ends[1]);
  options.argv.push_back(fmt::format("--status-fd={}", to_parent.get()));
  options.inherited_fds.push_back(to_parent.get());
  std::error_code error;
  const std::uint64_t before = std::filesystem::exists(log, error) ? std::filesystem::file_size(log, error) : 0;
  Subprocess daemon = MR_TRY(Subprocess::Start(std::move(options)));
  to_parent.Reset();
  if (MR_TRY(AwaitLive(from_daemon.get(), timeout, stop))) return daemon;
  const auto state = daemon.Wait(kEndTimeout);
  const std::string said = LastLine(log, before);
  if (!state) return Fail(Code::kInternal, "the mount's daemon closed its report and goes on");
  return Fail(CodeOf(*state), "{}", said.empty() ? "the mount's daemon ended: " + state->ToString() : said);
}

}  // namespace millrace::csi
