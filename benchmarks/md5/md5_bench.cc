// Prints the speed of MD5 on one thread: OpenSSL's, one stream of base/hash/md5_lanes.h, and 8 and 16 streams at a time
// with each instruction set that this processor has.
//
//   md5_bench [ROUNDS]
//
// Each stream hashes the same 64 KiB again and again: a piece of the size that transfers hash, warm in the cache. The
// figure is GB per second of CPU time, the best of ROUNDS rounds (default 100) of at least 10 ms each.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/md5_lanes.h"
#include "millrace/base/hash/random.h"

namespace millrace {
namespace {

constexpr std::size_t kPieceBytes = 64 * kKiB;  // Md5Pool::kPieceBytes
constexpr int kDefaultRounds = 100;
constexpr double kRoundSeconds = 0.01;  // some thirty calls, far beyond the resolution of the clock

/// Returns the CPU time of this thread, which other programs on the machine do not lengthen.
double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Returns the highest speed, in GB per CPU second, of `hash`, which hashes `bytes` bytes.
double BestSpeed(int rounds, std::uint64_t bytes, const std::function<void()>& hash) {
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    const double begin = CpuSeconds();
    std::uint64_t hashed = 0;
    double seconds = 0;
    while (seconds < kRoundSeconds) {
      hash();
      hashed += bytes;
      seconds = CpuSeconds() - begin;
    }
    best = std::max(best, static_cast<double>(hashed) / seconds / 1e9);
  }
  return best;
}

void Print(std::string_view what, std::size_t streams, double speed) {
  fmt::print("{:<16} {:>2} streams  {:5.2f} GB/s\n", what, streams, speed);
}

void Measure(int rounds) {
  Buffer data(kMd5Lanes * kPieceBytes);
  Random random(1);
  for (std::byte& byte : data.span()) byte = static_cast<std::byte>(random.Next());
  std::vector<Md5State> states(kMd5Lanes);
  std::vector<Md5Lane> lanes;
  for (std::size_t i = 0; i < kMd5Lanes; ++i) lanes.push_back({&states[i], data.data() + i * kPieceBytes});

  const ByteSpan piece = data.span().first(kPieceBytes);
  Print("OpenSSL", 1,
        BestSpeed(rounds, kPieceBytes, [&] { states[0].words[0] ^= LoadLittle<std::uint32_t>(Md5(piece).data()); }));
  const std::span<const Md5Lane> all = lanes;
  constexpr std::size_t kBlocks = kPieceBytes / kMd5BlockBytes;
  Print("scalar", 1, BestSpeed(rounds, kPieceBytes, [&] { Md5Compress(all.first(1), kBlocks); }));
  for (const Md5Variant& variant : Md5Variants()) {
    for (std::size_t streams : {kMd5Lanes / 2, kMd5Lanes}) {
      Print(variant.instruction_set, streams,
            BestSpeed(rounds, streams * kPieceBytes, [&] { variant.compress(all.first(streams), kBlocks); }));
    }
  }
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : millrace::kDefaultRounds;
  if (argc > 2 || rounds < 1) {
    std::fputs("usage: md5_bench [ROUNDS]\n", stderr);
    return 2;
  }
  millrace::Measure(rounds);
  return 0;
}
