#include "millrace/jobs/launchers/agent_link.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <memory>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/jobs/launchers/line_buffer.h"

namespace millrace::jobs {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

const std::string kKey = "0123456789abcdef", kOtherKey = "0123456789abcdeX";

/// A supervisor's side: `job agent --connect` in a thread, with pipes.
class Connection {
 public:
  Connection(int port, std::string key) {
    int orders[2], events[2];
    EXPECT_EQ(::pipe2(orders, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(events, O_CLOEXEC), 0);
    orders_ = UniqueFd(orders[1]);
    events_ = UniqueFd(events[0]);
    thread_ = std::thread([this, port, key = std::move(key), in = UniqueFd(orders[0]), out = UniqueFd(events[1])] {
      ended_.set_value(ConnectToAgent(fmt::format("127.0.0.1:{}", port), key, in.get(), out.get(), seconds(20)));
    });
  }
  ~Connection() {
    orders_.Reset();
    thread_.join();
  }
  void Order(const Json& order) { EXPECT_TRUE(WriteLine(orders_.get(), DumpJson(order))); }
  /// Returns the next event that has this member; null when the events have ended.
  Json Await(const char* member) {
    for (;;) {
      while (auto line = lines_.Next()) {
        Json event = *ParseJson(*line, "an event");
        if (event.contains(member)) return event[member];
      }
      if (!lines_.Fill(events_.get())) return nullptr;
    }
  }
  void Close() { orders_.Reset(); }
  Status End() { return ended_.get_future().get(); }

 private:
  UniqueFd orders_, events_;
  LineBuffer lines_;
  std::promise<Status> ended_;
  std::thread thread_;
};

class AgentLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    std::promise<int> port;
    thread_ = std::thread([this, &port] {
      ended_ =
          ListenAsAgent("127.0.0.1:0", kKey, [&port](int listening) { port.set_value(listening); }, stop_.get_token());
    });
    port_ = port.get_future().get();
  }
  void TearDown() override { Stop(); }
  void Stop() {
    stop_.request_stop();
    if (thread_.joinable()) thread_.join();
  }
  /// An order to start one rank, which is a script.
  Json Start(const std::string& script) {
    const std::filesystem::path program = folder_.path() / "rank.sh";
    std::ofstream(program) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return {{"start",
             {{"attempt", 1},
              {"first_rank", 0},
              {"ranks", 1},
              {"world_size", 1},
              {"master_address", "127.0.0.1"},
              {"master_port", 1},
              {"rank_secret", "of this start"},
              {"threads", 1},
              {"program", program.string()},
              {"job", "name: tested\n"}}}};
  }

  const TempDir folder_ = *TempDir::Create();
  std::stop_source stop_;
  int port_ = 0;
  Status ended_;
  std::thread thread_;
};

TEST_F(AgentLinkTest, CarriesOrdersAndEvents) {
  Connection supervisor(port_, kKey);
  supervisor.Order(Start("echo \"it's there\"; exit 7"));
  EXPECT_EQ(supervisor.Await("line")["text"], "it's there");
  EXPECT_EQ(supervisor.Await("exit")["code"], 7);
  supervisor.Close();
  EXPECT_TRUE(supervisor.End());
}

TEST_F(AgentLinkTest, CarriesMoreThanItsBuffersHold) {
  Connection supervisor(port_, kKey);
  supervisor.Order(
      Start("i=0; while [ $i -lt 20000 ]; do echo $i 0123456789012345678901234567890123456789; i=$((i+1)); done"));
  for (int i = 0; i < 20000; ++i) {
    ASSERT_THAT(supervisor.Await("line")["text"].get<std::string>(), testing::StartsWith(fmt::format("{} ", i)));
  }
}

TEST_F(AgentLinkTest, RefusesAnotherKeyAndServesTheRightOne) {
  Connection stranger(port_, kOtherKey);
  stranger.Order({{"port", true}});
  EXPECT_EQ(stranger.Await("port"), nullptr);
  EXPECT_EQ(stranger.End().error().code(), Code::kPermissionDenied);
  Connection supervisor(port_, kKey);
  supervisor.Order({{"port", true}});
  EXPECT_GT(supervisor.Await("port"), 0);
}

TEST_F(AgentLinkTest, SilentConnectionsTakeNoOnesPlace) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i) {
    silent.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    ASSERT_EQ(::connect(silent.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  Connection supervisor(port_, kKey);
  supervisor.Order({{"port", true}});
  EXPECT_GT(supervisor.Await("port"), 0);
}

TEST_F(AgentLinkTest, RanksDieWithTheConnectionAndTheNextOneIsServed) {
  pid_t rank = 0;
  {
    Connection supervisor(port_, kKey);
    supervisor.Order(Start("exec sleep 60"));
    rank = supervisor.Await("started")[0].get<pid_t>();
    EXPECT_EQ(::kill(rank, 0), 0);
  }
  Connection next(port_, kKey);
  next.Order({{"port", true}});
  EXPECT_GT(next.Await("port"), 0);
  EXPECT_EQ(::kill(rank, 0), -1);
}

TEST_F(AgentLinkTest, RanksSaveWhenTheAgentIsToLeave) {
  Connection supervisor(port_, kKey);
  // It ends a while after SIGTERM, as one that saves does; a second SIGTERM would end it at once.
  supervisor.Order(Start("trap 'trap - TERM; echo saved; exit 130' TERM; echo ready; while :; do sleep 0.02; done"));
  EXPECT_EQ(supervisor.Await("line")["text"], "ready");
  stop_.request_stop();
  EXPECT_EQ(supervisor.Await("line")["text"], "saved");
  EXPECT_EQ(supervisor.Await("exit")["code"], 130);
  EXPECT_EQ(supervisor.Await("exit"), nullptr);
  Stop();
  EXPECT_EQ(ended_.error().code(), Code::kCancelled);
}

TEST_F(AgentLinkTest, AnAgentWithoutASupervisorLeavesAtOnce) {
  Stop();
  EXPECT_EQ(ended_.error().code(), Code::kCancelled);
}

TEST(AgentLink, NobodyAnswers) {
  const auto refused = ConnectToAgent("127.0.0.1:1", kKey, STDIN_FILENO, STDOUT_FILENO, seconds(1));
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  EXPECT_EQ(ConnectToAgent("nonsense", kKey, STDIN_FILENO, STDOUT_FILENO, seconds(1)).error().code(),
            Code::kInvalidArgument);
}

TEST(AgentLink, KeysHaveALength) {
  const TempDir folder = *TempDir::Create();
  const auto read = [&](const std::string& content) {
    std::ofstream(folder.path() / "key") << content;
    return ReadAgentKey(folder.path() / "key");
  };
  EXPECT_EQ(*read(kKey + "\n"), kKey);
  EXPECT_FALSE(read("short"));
  EXPECT_FALSE(read(std::string(257, 'x')));
  EXPECT_EQ(read(std::string(256, 'x'))->size(), 256u);
}

}  // namespace
}  // namespace millrace::jobs
