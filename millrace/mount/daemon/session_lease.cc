#include "millrace/mount/daemon/session_lease.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/mount/daemon/session_holder.h"

namespace millrace::mount {
namespace {

constexpr std::uint64_t kMaxPlan = 1 * kMiB;
constexpr Duration kReconnect = std::chrono::milliseconds(100);  // a keeper starts in some milliseconds

/// Reads the answer to a message. Errors: kBusy, kNotFound, kResourceExhausted and kInternal as the keeper answers.
Result<SessionHolderMessage> ReceiveAnswer(int connection) {
  SessionHolderMessage answer = MR_TRY(ReceiveHolderMessage(connection));
  if (answer.text == "ok" || answer.text.starts_with("ok\n")) return answer;
  if (answer.text == "busy") {
    return Fail(Code::kBusy, "another process serves the mount; wait until it ends, or unmount first");
  }
  if (answer.text == "none") {
    return Fail(Code::kNotFound, "the keeper has nothing under this name; mount the volume again");
  }
  if (answer.text.starts_with("full")) {
    return Fail(Code::kResourceExhausted, "the keeper is {}; use fewer volumes on this node", answer.text);
  }
  return Fail(Code::kInternal, "the keeper answers \"{}\"", answer.text);
}

/// Sends a message and returns the answer.
Result<SessionHolderMessage> Ask(int connection, std::string_view text, int descriptor = -1) {
  Status sent = SendHolderMessage(connection, text, descriptor);
  // A keeper without room answers before it is asked, and ends the connection.
  if (!sent && sent.error().code() != Code::kUnavailable) return Fail(sent.error());
  return ReceiveAnswer(connection);
}

}  // namespace

Result<std::unique_ptr<SessionLease>> SessionLease::Acquire(std::filesystem::path socket, std::string name, Logger log,
                                                            Duration timeout) {
  std::unique_ptr<SessionLease> held(new SessionLease(std::move(socket), std::move(name), std::move(log), timeout));
  MutexLock lock(held->mutex_);
  held->device_ = MR_TRY(held->Connect());
  return held;
}

SessionLease::~SessionLease() { watcher_ = {}; }

/// Connects and holds the name. Returns the keeper's descriptor.
Result<UniqueFd> SessionLease::Connect() {
  UniqueFd connection = MR_TRY(ConnectSessionHolder(socket_, timeout_));
  SessionHolderMessage answer = MR_TRY(Ask(connection.get(), "hold " + name_));
  connection_ = std::move(connection);
  return std::move(answer.descriptor);
}

/// Asks the keeper. The connection stays if the keeper does not answer in time: a keeper that runs on later reads what
/// it was sent, and must not take the mount for one whose process died.
Result<SessionHolderMessage> SessionLease::AskKeeper(std::string_view text, int descriptor) {
  auto answer = Ask(connection_.get(), text, descriptor);
  if (answer) return answer;
  if (answer.error().code() == Code::kUnavailable) connection_.Reset();
  if (answer.error().code() == Code::kDeadlineExceeded && !std::exchange(awaits_answer_, true)) {
    log_.Warning("the keeper does not answer; it has the mount as soon as it goes on", {{"mount", name_}});
  }
  return answer;
}

/// Gives the keeper the descriptor, and the plan that an earlier keeper had. Takes the plan of the first keeper: if
/// keeper and starter die together, nobody else has it.
Status SessionLease::SendDevice() {
  MR_TRY(AskKeeper("keep", kept_.get()));
  if (plan_) {
    (void)AskKeeper("plan " + name_, plan_.get());
  } else if (auto answer = AskKeeper("read " + name_)) {
    plan_ = std::move(answer->descriptor);
  }
  return {};
}

Status SessionLease::StoreDevice(int device) {
  MutexLock lock(mutex_);
  kept_ = UniqueFd(::fcntl(device, F_DUPFD_CLOEXEC, 0));
  if (!kept_) return Fail(ErrnoError(errno, "cannot duplicate the FUSE descriptor"));
  (void)SendDevice();  // if the keeper is gone, the watcher looks for the next one
  watcher_ = std::jthread([this](const std::stop_token& stop) { Watch(stop); });
  return {};
}

void SessionLease::ForgetSession() {
  watcher_ = {};
  MutexLock lock(mutex_);
  if (connection_) (void)Ask(connection_.get(), "drop");
  connection_.Reset();
  kept_.Reset();
}

/// Reads the answer to a message that came late, or the end of the connection. Never blocks.
void SessionLease::CheckConnection() {
  pollfd readable{connection_.get(), POLLIN, 0};
  if (::poll(&readable, 1, 0) == 0) return;
  const bool late = std::exchange(awaits_answer_, false);
  if (late && ReceiveAnswer(connection_.get())) {
    return log_.Info("the keeper goes on, and has the mount", {{"mount", name_}});
  }
  log_.Warning("the keeper is gone; the mount goes on", {{"mount", name_}});
  connection_.Reset();
}

/// Brings the descriptor to the next keeper whenever the keeper ends.
void SessionLease::Watch(const std::stop_token& stop) {
  while (SystemClock().SleepFor(kReconnect, stop)) {
    MutexLock lock(mutex_);
    if (connection_) CheckConnection();
    if (connection_) continue;
    if (auto connected = Connect(); !connected) continue;
    if (SendDevice() && !awaits_answer_) log_.Info("another keeper has the mount", {{"mount", name_}});
  }
}

Result<std::vector<HeldSessionInfo>> ListHeldSessions(const std::filesystem::path& socket) {
  const UniqueFd connection = MR_TRY(ConnectSessionHolder(socket));
  const SessionHolderMessage answer = MR_TRY(Ask(connection.get(), "list"));
  std::vector<HeldSessionInfo> names;
  for (const std::string_view line : Split(answer.text, '\n')) {
    const auto words = Split(line, ' ');
    if (words.size() != 4) continue;
    names.push_back({.name = std::string(words[0]),
                     .held = words[1] == "held",
                     .has_device = words[2] == "kept",
                     .has_plan = words[3] == "plan"});
  }
  return names;
}

Status StoreDaemonPlan(const std::filesystem::path& socket, std::string_view name, std::string_view plan) {
  if (plan.size() > kMaxPlan) {
    return Fail(Code::kInvalidArgument, "a plan of {} bytes is too long; at most {} are kept", plan.size(), kMaxPlan);
  }
  const UniqueFd memory(::memfd_create("plan", MFD_CLOEXEC));
  if (!memory) return Fail(ErrnoError(errno, "cannot make a memfd"));
  MR_TRY(WriteFully(memory.get(), AsBytes(plan), 0, "a memfd"));
  const UniqueFd connection = MR_TRY(ConnectSessionHolder(socket));
  MR_TRY(Ask(connection.get(), fmt::format("plan {}", name), memory.get()));
  return {};
}

Result<std::string> ReadDaemonPlan(const std::filesystem::path& socket, std::string_view name) {
  const UniqueFd connection = MR_TRY(ConnectSessionHolder(socket));
  const SessionHolderMessage answer = MR_TRY(Ask(connection.get(), fmt::format("read {}", name)));
  struct stat info{};
  if (!answer.descriptor || ::fstat(answer.descriptor.get(), &info) != 0 ||
      static_cast<std::uint64_t>(info.st_size) > kMaxPlan) {
    return Fail(Code::kInternal, "the keeper's plan cannot be read");
  }
  std::string plan(static_cast<std::size_t>(info.st_size), '\0');
  MR_TRY(ReadExactly(answer.descriptor.get(), AsWritableBytes(plan), 0, "a memfd"));
  return plan;
}

Status ForgetHeldSession(const std::filesystem::path& socket, std::string_view name) {
  const UniqueFd connection = MR_TRY(ConnectSessionHolder(socket));
  MR_TRY(Ask(connection.get(), fmt::format("forget {}", name)));
  return {};
}

}  // namespace millrace::mount
