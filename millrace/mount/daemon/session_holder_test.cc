#include "millrace/mount/daemon/session_holder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/mount/daemon/session_lease.h"

namespace millrace::mount {
namespace {

class KeeperTest : public testing::Test {
 protected:
  void StartKeeper() {
    auto keeper = SessionHolder::Start(socket(), Logger(log_, LogLevel::kInfo));
    ASSERT_TRUE(keeper) << keeper.error().ToString();
    keeper_ = *std::move(keeper);
  }
  std::filesystem::path socket() const { return dir_.path() / "keeper.sock"; }
  std::unique_ptr<SessionLease> Acquire(const std::string& name) {
    auto held = SessionLease::Acquire(socket(), name, {});
    EXPECT_TRUE(held) << held.error().ToString();
    return *std::move(held);
  }
  /// A file in place of a FUSE device.
  UniqueFd Device() const { return *OpenFile(dir_.path() / "device", O_RDWR | O_CREAT); }
  static ino_t NumberOf(const UniqueFd& fd) {
    struct stat info{};
    ::fstat(fd.get(), &info);
    return info.st_ino;
  }
  std::vector<HeldSessionInfo> List() const { return *ListHeldSessions(socket()); }

  struct LinesSink final : LogSink {
    void Write(std::string_view line) override {
      MutexLock lock(mutex);
      lines.emplace_back(line);
    }
    Mutex mutex;
    std::vector<std::string> lines MR_GUARDED_BY(mutex);
  };
  int LinesWith(std::string_view text) const {
    MutexLock lock(log_->mutex);
    return static_cast<int>(
        std::ranges::count_if(log_->lines, [&](const std::string& line) { return line.contains(text); }));
  }

  TempDir dir_ = *TempDir::Create("/tmp");  // the path of a socket must be short
  std::shared_ptr<LinesSink> log_ = std::make_shared<LinesSink>();
  std::unique_ptr<SessionHolder> keeper_;
};

TEST_F(KeeperTest, GivesADescriptorToTheNextProcess) {
  StartKeeper();
  const UniqueFd device = Device();
  auto first = Acquire("a");
  EXPECT_FALSE(first->TakeDevice());
  ASSERT_TRUE(first->StoreDevice(device.get()));
  EXPECT_EQ(SessionLease::Acquire(socket(), "a", {}).error().code(), Code::kBusy);
  first.reset();  // as if its process died
  while (List().at(0).held) ::usleep(1000);
  EXPECT_TRUE(List().at(0).has_device);
  auto second = Acquire("a");
  EXPECT_EQ(NumberOf(second->TakeDevice()), NumberOf(device));
  EXPECT_TRUE(List().at(0).held);
  second->ForgetSession();
  EXPECT_TRUE(List().empty());
}

TEST_F(KeeperTest, ForgetsAProcessThatEndedBeforeItsMountWasLive) {
  StartKeeper();
  ASSERT_TRUE(StoreDaemonPlan(socket(), "a", "how to start"));
  Acquire("a").reset();
  while (!List().empty()) ::usleep(1000);
  EXPECT_EQ(ReadDaemonPlan(socket(), "a").error().code(), Code::kNotFound);
}

TEST_F(KeeperTest, KeepsPlans) {
  StartKeeper();
  const std::string plan(100'000, 'p');
  ASSERT_TRUE(StoreDaemonPlan(socket(), "a", plan));
  EXPECT_EQ(*ReadDaemonPlan(socket(), "a"), plan);
  auto held = Acquire("a");
  EXPECT_EQ(ForgetHeldSession(socket(), "a").error().code(), Code::kBusy);
  ASSERT_TRUE(StoreDaemonPlan(socket(), "b", "other"));
  ASSERT_TRUE(ForgetHeldSession(socket(), "b"));
  EXPECT_EQ(ReadDaemonPlan(socket(), "b").error().code(), Code::kNotFound);
}

TEST_F(KeeperTest, GetsTheDescriptorsAgainAfterItsDeath) {
  StartKeeper();
  const UniqueFd device = Device();
  auto held = Acquire("a");
  ASSERT_TRUE(StoreDaemonPlan(socket(), "a", "how to start"));
  ASSERT_TRUE(held->StoreDevice(device.get()));
  keeper_.reset();
  EXPECT_EQ(ListHeldSessions(socket()).error().code(), Code::kUnavailable);
  StartKeeper();
  while (List().empty() || !List().at(0).has_plan) ::usleep(1000);
  EXPECT_TRUE(List().at(0).has_device);
  EXPECT_EQ(*ReadDaemonPlan(socket(), "a"), "how to start");
  held.reset();
  while (List().at(0).held) ::usleep(1000);
  EXPECT_EQ(NumberOf(Acquire("a")->TakeDevice()), NumberOf(device));
}

TEST_F(KeeperTest, ServesOneSocketOnce) {
  StartKeeper();
  EXPECT_EQ(SessionHolder::Start(socket(), {}).error().code(), Code::kAlreadyExists);
  EXPECT_EQ(SessionHolder::Start(dir_.path() / std::string(200, 'x'), {}).error().code(), Code::kInvalidArgument);
  struct stat info{};
  ASSERT_EQ(::stat(socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

TEST_F(KeeperTest, AnswersNonsense) {
  StartKeeper();
  const UniqueFd connection = *ConnectSessionHolder(socket());
  for (const std::string& text : {std::string("keep"), std::string("drop"), std::string("hold"),
                                  std::string("hold a/b"), std::string("hold ") + std::string(200, 'a'),
                                  std::string("plan a"), std::string("what"), std::string(5000, 'x')}) {
    ASSERT_TRUE(SendHolderMessage(connection.get(), text, -1)) << text;
    EXPECT_TRUE(ReceiveHolderMessage(connection.get())->text.starts_with("error ")) << text;
  }
  EXPECT_TRUE(List().empty());
}

/// Lowers this process's limit of open files until the end of the test.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit lower{.rlim_cur = limit, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

TEST_F(KeeperTest, SaysThatItIsFull) {
  const DescriptorLimit limit(kHolderDescriptors + 3 * 2);
  StartKeeper();
  EXPECT_EQ(LinesWith("has room for fewer mounts"), 1);
  ASSERT_TRUE(StoreDaemonPlan(socket(), "a", "plan"));
  ASSERT_TRUE(StoreDaemonPlan(socket(), "b", "plan"));
  for (int i = 0; i < 3; ++i) {
    const Status refused = StoreDaemonPlan(socket(), "c", "plan");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
    EXPECT_EQ(SessionLease::Acquire(socket(), "c", {}).error().code(), Code::kResourceExhausted);
  }
  EXPECT_EQ(LinesWith("the keeper is full"), 1);
  ASSERT_TRUE(StoreDaemonPlan(socket(), "a", "another plan of a name that it has"));
  ASSERT_TRUE(ForgetHeldSession(socket(), "b"));
  ASSERT_TRUE(StoreDaemonPlan(socket(), "c", "plan"));
}

TEST_F(KeeperTest, AnswersWhoFindsItWithoutDescriptors) {
  StartKeeper();
  auto open_socket = [&] {
    UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return made;
  };
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(open_socket());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(socket().string(), address.sun_path);
  const DescriptorLimit limit(200);
  std::vector<UniqueFd> others;
  while (UniqueFd other{::dup(STDERR_FILENO)}) others.push_back(std::move(other));
  for (const UniqueFd& client : clients) {
    ASSERT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const auto answer = ReceiveHolderMessage(client.get());
    ASSERT_TRUE(answer) << answer.error().ToString();
    EXPECT_EQ(answer->text, "full of open files");
  }
  EXPECT_EQ(LinesWith("the keeper refuses connections"), 1);
  others.clear();
  EXPECT_TRUE(List().empty());
}

/// A keeper that does only what the test does. It stands for one whose process is stopped.
class StoppedKeeperTest : public KeeperTest {
 protected:
  void SetUp() override {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::ranges::copy(socket().string(), address.sun_path);
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(listener_.get(), 1), 0);
  }
  UniqueFd Accept() const { return UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

  static constexpr Duration kShort = std::chrono::milliseconds(20);
  UniqueFd listener_;
};

TEST_F(StoppedKeeperTest, EveryCallEnds) {
  std::vector<UniqueFd> waiting;
  while (true) {
    auto connection = ConnectSessionHolder(socket(), kShort);
    if (!connection) {  // the kernel's queue is full
      EXPECT_EQ(connection.error().code(), Code::kDeadlineExceeded);
      break;
    }
    ASSERT_TRUE(SendHolderMessage(connection->get(), "list", -1));
    EXPECT_EQ(ReceiveHolderMessage(connection->get()).error().code(), Code::kDeadlineExceeded);
    waiting.push_back(*std::move(connection));
    ASSERT_LE(waiting.size(), 100);
  }
}

TEST_F(StoppedKeeperTest, AHolderThatWaitedInVainKeepsItsConnection) {
  std::unique_ptr<SessionLease> held;
  UniqueFd connection;
  {
    std::jthread keeper([&] {
      connection = Accept();
      EXPECT_EQ(ReceiveHolderMessage(connection.get())->text, "hold a");
      EXPECT_TRUE(SendHolderMessage(connection.get(), "ok", -1));
    });
    auto acquired = SessionLease::Acquire(socket(), "a", Logger(log_, LogLevel::kInfo), kShort);
    ASSERT_TRUE(acquired) << acquired.error().ToString();
    held = *std::move(acquired);
  }
  const UniqueFd device = Device();
  ASSERT_TRUE(held->StoreDevice(device.get())) << "the mount goes on";
  EXPECT_EQ(LinesWith("it has the mount as soon as it goes on"), 1);
  // The keeper goes on. An end of the connection would tell it that the mount's process died.
  const auto kept = ReceiveHolderMessage(connection.get());
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->text, "keep");
  EXPECT_EQ(NumberOf(kept->descriptor), NumberOf(device));
  ASSERT_TRUE(SendHolderMessage(connection.get(), "ok", -1));
  while (LinesWith("the keeper goes on, and has the mount") == 0) std::this_thread::yield();
  connection.Reset();
  while (LinesWith("the keeper is gone") == 0) std::this_thread::yield();
}

}  // namespace
}  // namespace millrace::mount
