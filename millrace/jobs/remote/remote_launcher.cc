#include "millrace/jobs/remote/remote_launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "millrace/base/json.h"
#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

/// How long a killed rank may take to be gone before its node counts as lost.
constexpr Duration kLeaveTime = std::chrono::seconds(5);
/// How long an agent may leave orders unread that do not fit its pipe.
constexpr int kOrderPatienceMs = 5000;
/// The lines of an agent's standard error that a loss is explained with: ssh's words on a changed host key are 14.
constexpr int kWordLines = 20;

std::uint64_t SizeOf(const UniqueFd& file) {
  struct stat info{};
  return ::fstat(file.get(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

}  // namespace

std::string LastWords(std::string_view words) {
  constexpr std::size_t kMostLines = 2;
  std::vector<std::string_view> lines = Split(words, '\n');
  std::erase_if(lines, [](std::string_view line) { return Trim(line).empty(); });
  if (lines.size() > kMostLines) lines.erase(lines.begin(), lines.end() - kMostLines);
  return fmt::format("{}", fmt::join(lines, " "));
}

RemoteLauncher::RemoteLauncher(Options options)
    : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  agents_.resize(options_.nodes.size());
  losses_.resize(options_.nodes.size());
  words_start_.resize(options_.nodes.size());
}

RemoteLauncher::~RemoteLauncher() { Abandon(); }

Status RemoteLauncher::OpenLogs() {
  const auto log = [&](int rank, const char* suffix) {
    return OpenFile(options_.folder / "logs" / fmt::format("rank-{}.{}", rank, suffix),
                    O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
  };
  while (static_cast<int>(logs_.size()) < ranks()) {
    const int rank = static_cast<int>(logs_.size());
    UniqueFd out = MR_TRY(log(rank, "out"));
    UniqueFd error = MR_TRY(log(rank, "err"));
    logs_.push_back({.out = std::move(out), .error = std::move(error)});
  }
  for (RankLog& each : logs_) each.error_start = SizeOf(each.error);
  return {};
}

std::filesystem::path RemoteLauncher::WordsPath(std::size_t node) const {
  return options_.folder / "logs" / fmt::format("agent-{}.err", options_.nodes[node].name);
}

Status RemoteLauncher::Connect(std::size_t node) {
  if (agents_[node] && !agents_[node]->process.Poll()) return {};
  losses_[node].reset();
  words_start_[node] = SizeOf(MR_TRY(OpenFile(WordsPath(node), O_WRONLY | O_CREAT | O_APPEND)));
  auto process = Subprocess::Start({.argv = options_.nodes[node].command,
                                    .stderr_file = WordsPath(node),
                                    .capture_stdout = true,
                                    .null_stdin = false,
                                    .pipe_stdin = true});
  if (!process) return Fail(process.error().Context("node " + options_.nodes[node].name));
  const int orders = process->stdin_fd();
  ::fcntl(orders, F_SETFL, ::fcntl(orders, F_GETFL) | O_NONBLOCK);
  agents_[node] = Agent{.process = *std::move(process), .heard = SystemClock().Now()};
  return {};
}

/// Returns false if the agent is gone, or does not read; the next Listen() finds out why, or the silence does.
bool RemoteLauncher::Order(std::size_t node, const Json& order) {
  return agents_[node] && WriteLine(agents_[node]->process.stdin_fd(), DumpJson(order), kOrderPatienceMs);
}

/// Listens until the first `nodes` agents have answered.
/// Errors: kUnavailable if one is lost or the time is over; what an agent refuses.
Status RemoteLauncher::Await(TimePoint until, const std::function<bool(const Agent&)>& answered, std::size_t nodes) {
  for (;;) {
    bool all = true;
    for (std::size_t node = 0; node < nodes; ++node) {
      const std::string& name = options_.nodes[node].name;
      if (!agents_[node]) return Fail(*losses_[node]);
      if (agents_[node]->refusal) return Fail(*agents_[node]->refusal);
      if (answered(*agents_[node])) continue;
      all = false;
      if (SystemClock().Now() >= until) return Fail(Code::kUnavailable, "node {} does not answer", name);
    }
    if (all) return {};
    Listen(until);
  }
}

Status RemoteLauncher::Start(int attempt) {
  const TimePoint until = SystemClock().Now() + options_.start_timeout;
  MR_TRY(OpenLogs());
  states_.clear();
  const auto start = [&]() -> Status {
    for (std::size_t node = 0; node < agents_.size(); ++node) MR_TRY(Connect(node));
    for (auto& agent : agents_) {
      agent->port.reset();
      agent->refusal.reset();
      agent->started = false;
    }
    // The orders may be longer than a pipe, and who has not yet reached a machine does not read them.
    MR_TRY(Await(until, [](const Agent& agent) { return agent.spoke; }, agents_.size()));
    Order(0, {{"port", true}});
    MR_TRY(Await(until, [](const Agent& agent) { return agent.port.has_value(); }, 1));
    const int port = *agents_[0]->port;
    states_.assign(static_cast<std::size_t>(ranks()), RankState{});
    for (std::size_t node = 0; node < agents_.size(); ++node) {
      const Json order = {{"attempt", attempt},
                          {"first_rank", static_cast<int>(node) * options_.ranks_per_node},
                          {"ranks", options_.ranks_per_node},
                          {"world_size", ranks()},
                          {"master_address", options_.nodes[0].address},
                          {"master_port", port},
                          {"threads", options_.threads},
                          {"program", options_.program},
                          {"job", options_.job},
                          {"env", options_.env}};
      Order(node, {{"start", order}});  // Await() tells if it was lost
    }
    return Await(until, [](const Agent& agent) { return agent.started; }, agents_.size());
  };
  const Status started = start();
  if (!started) Abandon();
  return started;
}

/// Ends all agents. They kill their ranks when their input ends.
void RemoteLauncher::Abandon() {
  for (auto& agent : agents_) {
    if (agent) agent->process.CloseStdin();
  }
  const TimePoint until = SystemClock().Now() + kLeaveTime;
  for (auto& agent : agents_) {
    if (agent) agent->process.Wait(std::max(until - SystemClock().Now(), Duration(0)));
    agent.reset();
  }
  states_.clear();
}

std::span<const RankState> RemoteLauncher::Wait(TimePoint until, std::stop_token stop) {
  const std::stop_callback wake(stop, [this] { ::eventfd_write(wake_.get(), 1); });
  Listen(until);
  return states_;
}

/// Waits until an agent has said something or `until` has passed, and takes all of it.
void RemoteLauncher::Listen(TimePoint until) {
  std::vector<pollfd> watched = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  TimePoint next = until;
  for (const auto& agent : agents_) {
    watched.push_back({.fd = agent ? agent->process.stdout_fd() : -1, .events = POLLIN, .revents = 0});
    if (agent) next = std::min(next, agent->heard + options_.silence);
  }
  const Duration wait = std::clamp<Duration>(next - SystemClock().Now(), Duration(0), std::chrono::minutes(1));
  ::poll(watched.data(), watched.size(), static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count()));
  eventfd_t ignored;
  ::eventfd_read(wake_.get(), &ignored);
  const TimePoint now = SystemClock().Now();
  for (std::size_t node = 0; node < agents_.size(); ++node) {
    if (!agents_[node]) continue;
    const bool readable = watched[node + 1].revents != 0;
    const bool open = !readable || agents_[node]->lines.Fill(agents_[node]->process.stdout_fd());
    if (readable) agents_[node]->heard = now;
    while (agents_[node]) {
      const auto line = agents_[node]->lines.Next();
      if (!line) break;
      Hear(node, *line);
    }
    if (!agents_[node]) continue;
    if (!open) {
      Lose(node, ExplainEnd(node, agents_[node]->process.Wait(kLeaveTime)));
    } else if (now - agents_[node]->heard >= options_.silence) {
      Lose(node, Error(Code::kUnavailable, fmt::format("node {} is lost: it said nothing for {}",
                                                       options_.nodes[node].name, FormatDuration(options_.silence))));
    }
  }
}

/// Says why the connection to an agent has closed.
Error RemoteLauncher::ExplainEnd(std::size_t node, const std::optional<ExitState>& ended) const {
  const RemoteNode& which = options_.nodes[node];
  if (!ended) return Error(Code::kUnavailable, fmt::format("node {} is lost: its connection closed", which.name));
  std::string words = TailOf(WordsPath(node), words_start_[node], kWordLines);
  std::erase(words, '\r');
  if (options_.explain) return options_.explain(which, *ended, words);
  const std::string last = LastWords(words);
  return Error(Code::kUnavailable, fmt::format("node {} is lost: {} ended with {}{}{}", which.name, which.command[0],
                                               ended->ToString(), last.empty() ? "" : ": ", last));
}

void RemoteLauncher::Hear(std::size_t node, const std::string& line) {
  const auto event = ParseJson(line, "an event of an agent");
  // Programs that start the agent (a login shell, srun) may have words of their own.
  if (!event || !event->is_object()) return;
  agents_[node]->spoke = true;
  if (const Status noted = Note(node, *event); !noted) {
    Lose(node,
         noted.error().WithCode(Code::kCorrupt).Context(fmt::format("node {} is lost", options_.nodes[node].name)));
  }
}

Status RemoteLauncher::Note(std::size_t node, const Json& event) {
  Agent& agent = *agents_[node];
  const int first = static_cast<int>(node) * options_.ranks_per_node;
  const auto rank_of = [&](const Json& json) -> Result<std::size_t> {
    const std::int64_t rank = MR_TRY(JsonInt(json, "rank"));
    if (rank < first || rank >= first + options_.ranks_per_node || states_.empty()) {
      return Fail(Code::kCorrupt, "its agent speaks of rank {}", rank);
    }
    return static_cast<std::size_t>(rank);
  };
  if (JsonFind(event, "port") != nullptr) {
    agent.port = static_cast<int>(MR_TRY(JsonInt(event, "port")));
  } else if (JsonFind(event, "refused") != nullptr) {
    agent.refusal =
        Error(Code::kIo, fmt::format("node {}: {}", options_.nodes[node].name, MR_TRY(JsonString(event, "refused"))));
  } else if (const Json* pids = JsonFind(event, "started")) {
    if (!pids->is_array() || static_cast<int>(pids->size()) != options_.ranks_per_node || states_.empty()) {
      return Fail(Code::kCorrupt, "its agent started other ranks than it was told to");
    }
    for (std::size_t i = 0; i < pids->size(); ++i) {
      if (!pids->at(i).is_number_integer()) return Fail(Code::kCorrupt, "its agent names no processes");
      RankState& state = states_[static_cast<std::size_t>(first) + i];
      state.pid = pids->at(i).get<std::int64_t>();
      state.node = options_.nodes[node].name;
    }
    agent.started = true;
  } else if (const Json* beat = JsonFind(event, "beat")) {
    RankState& state = states_[MR_TRY(rank_of(*beat))];
    state.beats = MR_TRY(JsonUint(*beat, "beats"));
    if (JsonFind(*beat, "step") != nullptr) state.step = MR_TRY(JsonUint(*beat, "step"));
  } else if (const Json* written = JsonFind(event, "line")) {
    const std::size_t rank = MR_TRY(rank_of(*written));
    const Json* error = JsonFind(*written, "error");
    const bool to_error = error != nullptr && error->is_boolean() && error->get<bool>();
    const std::string text = MR_TRY(JsonString(*written, "text"));
    // A full disk must not end the training.
    WriteLine((to_error ? logs_[rank].error : logs_[rank].out).get(), text);
    if (options_.on_line) {
      options_.on_line(static_cast<int>(rank), to_error ? LocalLauncher::Stream::kError : LocalLauncher::Stream::kOut,
                       text);
    }
  } else if (const Json* exit = JsonFind(event, "exit")) {
    const int code = static_cast<int>(MR_TRY(JsonInt(*exit, "code")));
    const int signal = static_cast<int>(MR_TRY(JsonInt(*exit, "signal")));
    states_[MR_TRY(rank_of(*exit))].exit = ExitState{.exit_code = code, .signal = signal};
  }
  return {};
}

void RemoteLauncher::Lose(std::size_t node, Error why) {
  const std::string cause = why.ToString();
  losses_[node] = std::move(why);
  agents_[node].reset();
  if (states_.empty()) return;
  for (int i = 0; i < options_.ranks_per_node; ++i) {
    RankState& state = states_[node * static_cast<std::size_t>(options_.ranks_per_node) + static_cast<std::size_t>(i)];
    if (state.exit) continue;
    state.exit = ExitState{.signal = SIGKILL};
    state.cause = cause;
  }
}

void RemoteLauncher::Signal(int signal_number) {
  for (std::size_t node = 0; node < agents_.size(); ++node) Order(node, {{"signal", signal_number}});
}

std::string RemoteLauncher::ErrorTail(int rank, int lines) {
  return TailOf(options_.folder / "logs" / fmt::format("rank-{}.err", rank),
                logs_.at(static_cast<std::size_t>(rank)).error_start, lines);
}

}  // namespace millrace::jobs
