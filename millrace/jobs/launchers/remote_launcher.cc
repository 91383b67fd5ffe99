#include "millrace/jobs/launchers/remote_launcher.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/jobs/health/peers.h"

namespace millrace::jobs {
namespace {

/// How long a killed rank may take to be gone before its node counts as lost.
constexpr Duration kLeaveTime = std::chrono::seconds(5);
/// How long an agent may leave orders unread that do not fit its pipe.
constexpr int kOrderPatienceMs = 5000;
/// The longest wait for events. While this process runs, its running time goes on at least so often.
constexpr Duration kTick = std::chrono::seconds(2);
/// How long after the end of its lease an agent may take to have killed its ranks: it looks every 2 s.
constexpr Duration kLeaseMargin = std::chrono::seconds(4);
/// ssh's status when the connection broke. What it had started may still run.
constexpr int kSshBroke = 255;
/// The lines of an agent's standard error that a loss is explained with: ssh's words on a changed host key are 14.
constexpr int kWordLines = 20;

std::uint64_t SizeOf(const UniqueFd& file) {
  struct stat info{};
  return ::fstat(file.get(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

std::vector<std::string> NamesOf(const std::vector<RemoteNode>& nodes) {
  std::vector<std::string> names;
  for (const RemoteNode& node : nodes) names.push_back(node.name);
  return names;
}

std::vector<int> SizesOf(const std::vector<int>& sizes, std::size_t nodes) {
  return sizes.empty() ? std::vector<int>{static_cast<int>(nodes)} : sizes;
}

/// Returns what is told of a check that did not end well.
std::string Sentence(const Finding& finding) {
  return fmt::format("{}: {}{}", finding.check, finding.what, finding.advice.empty() ? "" : " -> " + finding.advice);
}

}  // namespace

std::string LastErrorLines(std::string_view words) {
  constexpr std::size_t kMaxLines = 2;
  std::vector<std::string_view> lines = Split(words, '\n');
  std::erase_if(lines, [](std::string_view line) { return Trim(line).empty(); });
  if (lines.size() > kMaxLines) lines.erase(lines.begin(), lines.end() - kMaxLines);
  return fmt::format("{}", fmt::join(lines, " "));
}

RemoteLauncher::RemoteLauncher(Options options)
    : options_(std::move(options)),
      running_time_(2 * kTick),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      pool_(NamesOf(options_.nodes), SizesOf(options_.sizes, options_.nodes.size())) {
  agents_.resize(options_.nodes.size());
  losses_.resize(options_.nodes.size());
  error_log_start_.resize(options_.nodes.size());
}

int RemoteLauncher::ranks() const {
  const int placed = static_cast<int>(pool_.placed().size());
  return (placed > 0 ? placed : pool_.BestSize()) * options_.ranks_per_node;
}

std::optional<std::size_t> RemoteLauncher::SlotOf(std::size_t node) const {
  const auto found = std::ranges::find(pool_.placed(), node);
  if (found == pool_.placed().end()) return std::nullopt;
  return static_cast<std::size_t>(found - pool_.placed().begin());
}

RemoteLauncher::~RemoteLauncher() { Abandon(); }

Status RemoteLauncher::OpenLogs() {
  const auto log = [&](int rank, const char* suffix) {
    return OpenFile(options_.folder / "logs" / fmt::format("rank-{}.{}", rank, suffix),
                    O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
  };
  while (static_cast<int>(logs_.size()) < pool_.BestSize() * options_.ranks_per_node) {
    const int rank = static_cast<int>(logs_.size());
    UniqueFd out = MR_TRY(log(rank, "out"));
    UniqueFd error = MR_TRY(log(rank, "err"));
    logs_.push_back({.out = std::move(out), .error = std::move(error)});
  }
  for (RankLog& each : logs_) each.error_start = SizeOf(each.error);
  return {};
}

std::filesystem::path RemoteLauncher::AgentErrorLog(std::size_t node) const {
  return options_.folder / "logs" / fmt::format("agent-{}.err", options_.nodes[node].name);
}

Status RemoteLauncher::Connect(std::size_t node) {
  if (agents_[node] && !agents_[node]->process.Poll()) return {};
  losses_[node].reset();
  error_log_start_[node] = SizeOf(MR_TRY(OpenFile(AgentErrorLog(node), O_WRONLY | O_CREAT | O_APPEND)));
  auto process = Subprocess::Start({.argv = options_.nodes[node].command,
                                    .stderr_file = AgentErrorLog(node),
                                    .capture_stdout = true,
                                    .null_stdin = false,
                                    .pipe_stdin = true});
  if (!process) return Fail(process.error().Context("node " + options_.nodes[node].name));
  const int orders = process->stdin_fd();
  ::fcntl(orders, F_SETFL, ::fcntl(orders, F_GETFL) | O_NONBLOCK);
  agents_[node] = Agent{.process = *std::move(process), .last_event_at = RunningNow(), .answered_at = {}};
  return {};
}

/// Returns false if the agent is gone, or does not read; the next Listen() finds out why, or the silence does.
bool RemoteLauncher::SendOrder(std::size_t node, const Json& order) {
  if (!agents_[node]) return false;
  agents_[node]->answered_at = SystemClock().Now();
  return WriteLine(agents_[node]->process.stdin_fd(), DumpJson(order), kOrderPatienceMs);
}

Error RemoteLauncher::NodeLostError(std::size_t node, std::string_view why) const {
  return Error(Code::kUnavailable, fmt::format("node {} is lost: {}", options_.nodes[node].name, why));
}

/// Asks agents about their machines' health. Starts those that do not run.
void RemoteLauncher::RequestHealth(const std::vector<std::size_t>& nodes) {
  for (const std::size_t node : nodes) {
    if (const Status connected = Connect(node); !connected) {
      OnNodeLost(node, connected.error());
      continue;
    }
    agents_[node]->health.reset();
    agents_[node]->refusal.reset();
    SendOrder(node, {{"health", options_.health.ToJson()}});
  }
}

/// Asks nodes and listens until each has answered or is lost. Then it is known which are ready.
void RemoteLauncher::CallNodes(const std::vector<std::size_t>& nodes) {
  RequestHealth(nodes);
  const TimePoint until = SystemClock().Now() + options_.start_timeout;
  for (;;) {
    const bool late = SystemClock().Now() >= until;
    bool all = true;
    for (const std::size_t node : nodes) {
      if (!agents_[node] || agents_[node]->health) continue;
      if (agents_[node]->refusal) {
        OnNodeLost(node, Error(*agents_[node]->refusal));
      } else if (late) {
        OnNodeLost(node, NodeLostError(node, "its agent does not answer"));
      } else {
        all = false;
      }
    }
    if (all) break;
    ReceiveEvents(until);
  }
  UpdateNodeHealth();
}

/// Tells the pool which of the nodes that have answered are ready.
void RemoteLauncher::UpdateNodeHealth() {
  std::map<std::string, Findings> reports;
  for (std::size_t node = 0; node < agents_.size(); ++node) {
    if (agents_[node] && agents_[node]->health) reports[options_.nodes[node].name] = *agents_[node]->health;
  }
  CompareWithPeers(reports);
  for (std::size_t node = 0; node < agents_.size(); ++node) {
    const std::string& name = options_.nodes[node].name;
    const auto report = reports.find(name);
    if (report == reports.end()) continue;
    if (const Finding* failure = FirstFailure(report->second)) {
      pool_.NoteUnfit(node, fmt::format("node {} is unfit: {}", name, Sentence(*failure)));
      const auto spot = std::ranges::find(report->second, "spot", &Finding::check);
      if (spot != report->second.end()) leaving_.insert(node);
      ReportBadNode(node);
    } else {
      pool_.NoteReady(node);
    }
    std::vector<std::string> warnings;
    for (const Finding& finding : report->second) {
      if (finding.level == Finding::Level::kWarn) warnings.push_back(Sentence(finding));
    }
    pool_.NoteWarnings(node, std::move(warnings));
  }
}

/// Listens until the agents of these nodes have answered.
/// Errors: kUnavailable if one is lost or the time is over; what an agent refuses.
Status RemoteLauncher::Await(TimePoint until, const std::function<bool(const Agent&)>& answered,
                             std::span<const std::size_t> nodes) {
  for (;;) {
    bool all = true;
    for (const std::size_t node : nodes) {
      const std::string& name = options_.nodes[node].name;
      if (!agents_[node]) return Fail(*losses_[node]);
      if (agents_[node]->refusal) return Fail(*agents_[node]->refusal);
      if (answered(*agents_[node])) continue;
      all = false;
      if (SystemClock().Now() >= until) return Fail(Code::kUnavailable, "node {} does not answer", name);
    }
    if (all) return {};
    ReceiveEvents(until);
  }
}

Status RemoteLauncher::Start(int attempt) {
  MR_TRY(OpenLogs());
  states_.clear();
  const Status started = StartRanks(attempt);
  if (!started) Abandon();
  return started;
}

Status RemoteLauncher::StartRanks(int attempt) {
  slow_node_.clear();
  CallNodes(pool_.ToAsk());
  if (const auto others = pool_.LastResort(); !others.empty()) CallNodes(others);
  const auto chosen = pool_.Place();
  if (!chosen) {
    // Trying again does not help if a node is lost for good.
    for (const auto& loss : losses_) {
      if (loss && loss->code() != Code::kUnavailable) return Fail(*loss);
    }
    return Fail(chosen.error());
  }
  const std::vector<std::size_t>& placed = *chosen;
  AwaitLeases();
  const TimePoint until = SystemClock().Now() + options_.start_timeout;
  for (const std::size_t node : placed) {
    agents_[node]->port.reset();
    agents_[node]->refusal.reset();
    agents_[node]->started = false;
  }
  const bool is_best = static_cast<int>(placed.size()) == pool_.BestSize();
  const std::string job =
      is_best || !options_.job_on ? options_.job : MR_TRY(options_.job_on(static_cast<int>(placed.size())));
  const std::size_t first = placed.front();
  SendOrder(first, {{"port", true}});
  MR_TRY(Await(until, [](const Agent& agent) { return agent.port.has_value(); }, std::span(placed).first(1)));
  const int port = *agents_[first]->port;
  const bool starts_ranks = !options_.foreign || StartsRanks(*options_.foreign);
  const std::string secret = starts_ranks ? NewRankSecret() : "";
  states_.assign(static_cast<std::size_t>(ranks()), RankState{});
  for (std::size_t slot = 0; slot < placed.size(); ++slot) {
    Json order = {{"attempt", attempt},
                  {"first_rank", static_cast<int>(slot) * options_.ranks_per_node},
                  {"ranks", options_.ranks_per_node},
                  {"world_size", ranks()},
                  {"master_address", options_.nodes[first].address},
                  {"master_port", port},
                  {"rank_secret", secret},
                  {"threads", options_.threads},
                  {"lease_s", std::chrono::ceil<std::chrono::seconds>(options_.lease).count()},
                  {"program", options_.program},
                  {"job", job},
                  {"env", options_.env}};
    if (options_.one_machine) {
      order["first_local_rank"] = order["first_rank"];
      order["local_world_size"] = ranks();
    }
    if (options_.foreign) order["foreign"] = options_.foreign->ToJson();
    SendOrder(placed[slot], {{"start", std::move(order)}});  // Await() tells if it was lost
  }
  look_at_ = SystemClock().Now() + options_.return_interval;
  return Await(until, [](const Agent& agent) { return agent.started; }, placed);
}

bool RemoteLauncher::SetAside(std::string_view name, std::string why) {
  if (!pool_.SetAside(name, std::move(why))) return false;
  for (std::size_t node = 0; node < pool_.size(); ++node) {
    if (pool_.at(node).name == name) ReportBadNode(node);
  }
  return true;
}

void RemoteLauncher::ReportBadNode(std::size_t node) {
  const NodeState& state = pool_.at(node);
  if (options_.on_bad_node && bad_nodes_.insert(state.name).second) options_.on_bad_node(state.name, state.reason);
}

/// Sets nodes aside whose network is slow, as long as there are spares for them. `report_lines`: of a rank.
void RemoteLauncher::SetAsideSlowNodes(std::string_view report_lines) {
  constexpr std::string_view kSlow = "slow ";
  for (std::string_view line : Split(report_lines, '\n')) {
    if (!line.starts_with(kSlow)) continue;
    line.remove_prefix(kSlow.size());
    int rank = -1;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), rank);
    if (error != std::errc() || rank < 0 || rank >= ranks()) continue;
    const std::size_t node = pool_.placed()[static_cast<std::size_t>(rank / options_.ranks_per_node)];
    const NodeState& state = pool_.at(node);
    const std::string why(Trim(line.substr(static_cast<std::size_t>(end - line.data()))));
    const bool has_spare =
        std::ranges::any_of(pool_.states(), [](const NodeState& other) { return other.use == NodeState::Use::kSpare; });
    if (has_spare && SetAside(state.name, fmt::format("node {} is set aside: {}", state.name, why))) {
      slow_node_ = state.reason;
    } else if (std::vector<std::string> warnings = state.warnings;
               state.use == NodeState::Use::kRuns && std::ranges::find(warnings, why) == warnings.end()) {
      warnings.push_back(why);
      pool_.NoteWarnings(node, std::move(warnings));
    }
  }
}

std::string RemoteLauncher::RegroupReason() {
  if (!slow_node_.empty()) return slow_node_;
  if (const std::size_t unfit = pool_.Replaceable(); unfit < pool_.size()) return pool_.at(unfit).reason;
  const int now = static_cast<int>(pool_.placed().size()), next = pool_.NextSize();
  if (now == 0 || next <= now) return "";
  return fmt::format("{} nodes are ready again; there were {}", next, now);
}

std::string RemoteLauncher::LeaveReason() {
  for (const std::size_t node : pool_.placed()) {
    const NodeState& state = pool_.at(node);
    if (!leaving_.contains(node) || state.use != NodeState::Use::kUnfit || pool_.NextSize() > 0) continue;
    return state.reason + "; no other node can take its place";
  }
  return "";
}

/// Asks nodes that could make the job larger whether they are back.
void RemoteLauncher::LookForReturns(TimePoint now) {
  if (states_.empty() || now < look_at_) return;
  look_at_ = now + options_.return_interval;
  RequestHealth(pool_.MayReturn());
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
  LookForReturns(SystemClock().Now());
  ReceiveEvents(until);
  return states_;
}

/// Waits until an agent has said something or `until` has passed, and takes all of it.
void RemoteLauncher::ReceiveEvents(TimePoint until) {
  std::vector<pollfd> watched = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const auto& agent : agents_) {
    watched.push_back({.fd = agent ? agent->process.stdout_fd() : -1, .events = POLLIN, .revents = 0});
  }
  const Duration wait = std::clamp<Duration>(until - SystemClock().Now(), Duration(0), kTick);
  ::poll(watched.data(), watched.size(), static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count()));
  eventfd_t ignored;
  ::eventfd_read(wake_.get(), &ignored);
  const TimePoint now = RunningNow();
  for (std::size_t node = 0; node < agents_.size(); ++node) {
    if (!agents_[node]) continue;
    const bool readable = watched[node + 1].revents != 0;
    const bool open = !readable || agents_[node]->lines.Fill(agents_[node]->process.stdout_fd());
    if (readable) agents_[node]->last_event_at = now;
    while (agents_[node]) {
      const auto line = agents_[node]->lines.Next();
      if (!line) break;
      OnAgentLine(node, *line);
    }
    if (!agents_[node]) continue;
    if (!open) {
      const std::optional<ExitState> ended = agents_[node]->process.Wait(kLeaveTime);
      OnNodeLost(node, ExplainEnd(node, ended), ended);
    } else if (now - agents_[node]->last_event_at >= options_.silence) {
      OnNodeLost(node,
                 Error(Code::kUnavailable, fmt::format("node {} is lost: it said nothing for {}",
                                                       options_.nodes[node].name, FormatDuration(options_.silence))));
    }
  }
}

/// Says why the connection to an agent has closed.
Error RemoteLauncher::ExplainEnd(std::size_t node, const std::optional<ExitState>& ended) const {
  const RemoteNode& which = options_.nodes[node];
  if (!ended) return Error(Code::kUnavailable, fmt::format("node {} is lost: its connection closed", which.name));
  std::string words = TailOf(AgentErrorLog(node), error_log_start_[node], kWordLines);
  std::erase(words, '\r');
  if (options_.explain) return options_.explain(which, *ended, words);
  const std::string last = LastErrorLines(words);
  return Error(Code::kUnavailable, fmt::format("node {} is lost: {} ended with {}{}{}", which.name, which.command[0],
                                               ended->ToString(), last.empty() ? "" : ": ", last));
}

void RemoteLauncher::OnAgentLine(std::size_t node, const std::string& line) {
  const auto event = ParseJson(line, "an event of an agent");
  // Programs that start the agent (a login shell, srun) may have words of their own.
  if (!event || !event->is_object()) return;
  agents_[node]->has_sent_event = true;
  if (const Status noted = OnAgentEvent(node, *event); !noted) {
    OnNodeLost(
        node,
        noted.error().WithCode(Code::kCorrupt).Context(fmt::format("node {} is lost", options_.nodes[node].name)));
  }
}

Status RemoteLauncher::OnAgentEvent(std::size_t node, const Json& event) {
  Agent& agent = *agents_[node];
  if (event.empty()) SendOrder(node, Json::object());  // a sign of life, for another
  const std::optional<std::size_t> slot = SlotOf(node);
  const bool has_ranks = slot && !states_.empty();
  const int first = static_cast<int>(slot.value_or(0)) * options_.ranks_per_node;
  const auto rank_of = [&](const Json& json) -> Result<std::size_t> {
    const std::int64_t rank = MR_TRY(JsonInt(json, "rank"));
    if (rank < first || rank >= first + options_.ranks_per_node || !has_ranks) {
      return Fail(Code::kCorrupt, "the agent speaks of rank {}", rank);
    }
    return static_cast<std::size_t>(rank);
  };
  if (JsonFind(event, "port") != nullptr) {
    agent.port = static_cast<int>(MR_TRY(JsonInt(event, "port")));
  } else if (JsonFind(event, "refused") != nullptr) {
    agent.refusal =
        Error(Code::kIo, fmt::format("node {}: {}", options_.nodes[node].name, MR_TRY(JsonString(event, "refused"))));
  } else if (const Json* pids = JsonFind(event, "started")) {
    if (!pids->is_array() || static_cast<int>(pids->size()) != options_.ranks_per_node || !has_ranks) {
      return Fail(Code::kCorrupt, "the agent started other ranks than it was told to");
    }
    for (std::size_t i = 0; i < pids->size(); ++i) {
      if (!pids->at(i).is_number_integer()) return Fail(Code::kCorrupt, "the agent names no processes");
      RankState& state = states_[static_cast<std::size_t>(first) + i];
      state.pid = pids->at(i).get<std::int64_t>();
      state.node = options_.nodes[node].name;
    }
    agent.started = true;
  } else if (const Json* health = JsonFind(event, "health")) {
    MR_TRY(OnHealthEvent(node, *health));
  } else if (const Json* beat = JsonFind(event, "beat")) {
    RankState& state = states_[MR_TRY(rank_of(*beat))];
    state.beats = MR_TRY(JsonUint(*beat, "beats"));
    if (JsonFind(*beat, "step") != nullptr) state.step = MR_TRY(JsonUint(*beat, "step"));
    if (JsonFind(*beat, "told") != nullptr) {
      state.report_lines = MR_TRY(JsonString(*beat, "told"));
      SetAsideSlowNodes(state.report_lines);
    }
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

/// The answer to an order, or what has changed while ranks run.
Status RemoteLauncher::OnHealthEvent(std::size_t node, const Json& health) {
  if (!health.is_array()) return Fail(Code::kCorrupt, "the agent does not say what it found");
  Findings findings;
  for (const Json& finding : health) findings.push_back(MR_TRY(FindingFromJson(finding)));
  const bool runs = pool_.at(node).use == NodeState::Use::kRuns && !states_.empty();
  agents_[node]->health = std::move(findings);
  // While a start waits for answers, all are judged together at its end.
  if (runs || pool_.at(node).use == NodeState::Use::kLost || pool_.at(node).use == NodeState::Use::kUnfit)
    UpdateNodeHealth();
  return {};
}

/// Remembers how long ranks of an agent that is lost may live: not at all if the agent is known to have ended, since
/// its ranks end with it.
void RemoteLauncher::NoteLease(std::size_t node, const std::optional<ExitState>& ended) {
  const bool confirmed = ended && ended->signal == 0 && ended->exit_code != kSshBroke;
  if (!agents_[node] || !agents_[node]->started || confirmed) return;
  leases_end_ = std::max(leases_end_, agents_[node]->answered_at + options_.lease + kLeaseMargin);
}

void RemoteLauncher::AwaitLeases() {
  while (SystemClock().Now() < leases_end_) ReceiveEvents(leases_end_);
}

void RemoteLauncher::OnNodeLost(std::size_t node, Error why, const std::optional<ExitState>& ended) {
  NoteLease(node, ended);
  const std::optional<std::size_t> slot = SlotOf(node);
  const std::string cause = why.ToString();
  pool_.NoteLost(node, cause);
  losses_[node] = std::move(why);
  agents_[node].reset();
  if (states_.empty() || !slot) return;
  for (int i = 0; i < options_.ranks_per_node; ++i) {
    RankState& state = states_[*slot * static_cast<std::size_t>(options_.ranks_per_node) + static_cast<std::size_t>(i)];
    if (state.exit) continue;
    state.exit = ExitState{.signal = SIGKILL};
    state.cause = cause;
  }
}

void RemoteLauncher::Signal(int signal_number) {
  for (std::size_t node = 0; node < agents_.size(); ++node) SendOrder(node, {{"signal", signal_number}});
}

std::string RemoteLauncher::ErrorTail(int rank, int lines) {
  return TailOf(options_.folder / "logs" / fmt::format("rank-{}.err", rank),
                logs_.at(static_cast<std::size_t>(rank)).error_start, lines);
}

}  // namespace millrace::jobs
