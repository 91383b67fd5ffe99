// Prints how long an all-reduce takes between processes of one machine, over shared memory and over TCP, beside a
// memcpy of as many bytes.
//
//   all_reduce [RANKS [MEGABYTES [ROUNDS]]]
//
// The program starts itself as RANKS processes (default 2). In each of ROUNDS rounds (default 10), all ranks copy
// MEGABYTES (default 256) of float32 from one buffer to another at the same time; then they sum them over shared
// memory, then over TCP. A time is that of the slowest rank. The best round of each counts.
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/collectives/connect.h"

namespace millrace {
namespace {

constexpr auto kTimeout = std::chrono::minutes(2);

struct Arguments {
  int ranks = 2, megabytes = 256, rounds = 10;
};

/// Returns how long the slowest rank takes for `work`, which all ranks begin together.
Result<double> SlowestSeconds(collectives::Collective& group, const std::function<Status()>& work) {
  MR_TRY(group.Barrier());
  const TimePoint start = SystemClock().Now();
  MR_TRY(work());
  double seconds = std::chrono::duration<double>(SystemClock().Now() - start).count();
  MR_TRY(group.AllReduce(std::span(&seconds, 1), collectives::Reduction::kMax));
  return seconds;
}

Status Measure(const Arguments& arguments) {
  const collectives::RankInfo info = MR_TRY(collectives::RankInfo::FromEnvironment());
  collectives::RankInfo beside = info;
  ++beside.master_port;  // each way of connecting has a store of its own
  const auto shared = MR_TRY(collectives::ConnectRanks(info, kTimeout));
  const auto tcp = MR_TRY(collectives::ConnectTcp(beside, kTimeout));
  std::vector<float> data(static_cast<std::size_t>(arguments.megabytes) * 250'000);
  std::vector<float> copy(data.size());

  struct Case {
    const char* name;
    std::function<Status()> work;
    double best = std::numeric_limits<double>::infinity();
  };
  Case cases[] = {{"memcpy",
                   [&]() -> Status {
                     std::memcpy(copy.data(), data.data(), data.size() * sizeof(float));
                     return {};
                   }},
                  {"shared memory", [&] { return shared->AllReduce(std::span(data)); }},
                  {"TCP", [&] { return tcp->AllReduce(std::span(data)); }}};
  for (int round = 0; round < arguments.rounds; ++round) {
    for (Case& one : cases) one.best = std::min(one.best, MR_TRY(SlowestSeconds(*shared, one.work)));
  }
  if (info.rank == 0) {
    for (const Case& one : cases) {
      fmt::print("{:<14} {:8.1f} ms  {:6.2f} GB/s  {:5.2f} of memcpy's speed\n", one.name, 1e3 * one.best,
                 static_cast<double>(data.size() * sizeof(float)) / 1e9 / one.best, cases[0].best / one.best);
    }
  }
  return shared->Barrier();
}

Result<int> FreePort() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return Fail(ErrnoError(errno, "bind"));
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

Status StartRanks(const Arguments& arguments) {
  const int port = MR_TRY(FreePort());
  std::vector<Subprocess> ranks;
  for (int rank = 0; rank < arguments.ranks; ++rank) {
    ranks.push_back(
        MR_TRY(Subprocess::Start({.argv = {"/proc/self/exe", std::to_string(arguments.ranks),
                                           std::to_string(arguments.megabytes), std::to_string(arguments.rounds)},
                                  .env = {{"RANK", std::to_string(rank)},
                                          {"WORLD_SIZE", std::to_string(arguments.ranks)},
                                          {"MASTER_PORT", std::to_string(port)},
                                          {"OMP_NUM_THREADS", "1"}}})));
  }
  for (Subprocess& rank : ranks) {
    if (const auto state = rank.Wait(); !state->ok()) return Fail(Code::kInternal, "a rank: {}", state->ToString());
  }
  return {};
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  millrace::Arguments arguments;
  int* const numbers[] = {&arguments.ranks, &arguments.megabytes, &arguments.rounds};
  for (int i = 1; i < argc && i <= 3; ++i) *numbers[i - 1] = std::atoi(argv[i]);
  if (argc > 4 || arguments.ranks < 2 || arguments.megabytes < 1 || arguments.rounds < 1) {
    std::fputs("usage: all_reduce [RANKS [MEGABYTES [ROUNDS]]]\n", stderr);
    return 2;
  }
  const bool is_rank = std::getenv("WORLD_SIZE") != nullptr;
  const millrace::Status done = is_rank ? millrace::Measure(arguments) : millrace::StartRanks(arguments);
  if (!done) fmt::print(stderr, "all_reduce: {}\n", done.error().ToString());
  return done ? 0 : 1;
}
