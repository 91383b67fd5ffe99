// Runs tests on the ranks of a group, over each implementation.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/collectives/connect.h"
#include "millrace/collectives/nccl/nccl_group.h"
#include "millrace/collectives/testing/fake_nccl.h"
#include "millrace/collectives/testing/faulty.h"

namespace millrace::collectives {

enum class GroupKind { kThreads, kTcp, kSharedMemory, kDelayed, kNccl };
inline constexpr GroupKind kEveryGroupKind[] = {GroupKind::kThreads, GroupKind::kTcp, GroupKind::kSharedMemory,
                                                GroupKind::kDelayed, GroupKind::kNccl};

inline std::string GroupKindName(const testing::TestParamInfo<GroupKind>& info) {
  static constexpr const char* kNames[] = {"Threads", "Tcp", "SharedMemory", "Delayed", "Nccl"};
  return kNames[static_cast<std::size_t>(info.param)];
}

/// Returns a deadline that passes only where a test fails.
inline TimePoint Soon() { return SystemClock().Now() + std::chrono::seconds(20); }

inline int FreePort() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return 0;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

/// Runs `work` on every rank of a group, each on a thread. kDelayed is threads whose operations start late at
/// random. kNccl is the group of GPUs, over FakeNccl.
inline void RunRanks(GroupKind kind, int size, const std::function<void(std::unique_ptr<Collective>)>& work,
                     Duration timeout = std::chrono::seconds(60)) {
  std::vector<std::unique_ptr<Collective>> groups(static_cast<std::size_t>(size));
  const bool connects = kind == GroupKind::kTcp || kind == GroupKind::kSharedMemory;
  if (!connects) groups = ConnectThreads(size, timeout);
  const int port = connects ? FreePort() : 0;
  const auto nccl = std::make_shared<FakeNccl>();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      if (connects) {
        const RankInfo info{.rank = rank, .size = size, .local_rank = rank, .local_size = size, .master_port = port};
        auto connected = kind == GroupKind::kTcp ? ConnectTcp(info, timeout) : ConnectRanks(info, timeout);
        ASSERT_TRUE(connected) << connected.error().ToString();
        groups[rank] = *std::move(connected);
      }
      if (kind == GroupKind::kDelayed) {
        groups[rank] = MakeFaulty(std::move(groups[rank]), {.seed = 7, .most_delay = std::chrono::microseconds(300)});
      }
      if (kind == GroupKind::kNccl) {
        auto connected = MakeNcclGroup(std::move(groups[rank]), {.api = nccl,
                                                                 .device = std::make_shared<FakeStreams>(),
                                                                 .timeout = timeout,
                                                                 .takes = [](const Elements&) { return true; }});
        ASSERT_TRUE(connected) << connected.error().ToString();
        groups[rank] = *std::move(connected);
      }
      work(std::move(groups[rank]));
    });
  }
}

}  // namespace millrace::collectives
