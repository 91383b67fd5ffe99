// checkpoint_save URL MIB SAVES: saves a state of MIB mebibytes SAVES times, then verifies and reads it. One JSON
// object a line: for each save how long the caller stood still and how long until it was committed, in milliseconds.
#include <cstdio>
#include <cstdlib>

#include "millrace/base/json.h"
#include "millrace/base/random.h"
#include "millrace/checkpoint/checkpoint.h"

namespace millrace {
namespace {

double Milliseconds(Duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

void Print(const Json& line) { fmt::print("{}\n", DumpJson(line)); }

/// 4 MiB tensors of float32, as parameters and two moments of a small model have.
std::map<std::string, std::vector<std::byte>> MakeState(std::uint64_t mib) {
  std::map<std::string, std::vector<std::byte>> state;
  Random random(1);
  for (std::uint64_t i = 0; i < mib / 4; ++i) {
    auto& bytes = state[fmt::format("{}/layer.{}.weight", i % 3 ? "optimizer" : "model", i)];
    bytes.resize(4 * kMiB);
    for (std::size_t at = 0; at < bytes.size(); at += 8) StoreLittle(bytes.data() + at, random.Next());
  }
  return state;
}

Status Run(const std::string& url, std::uint64_t mib, int saves) {
  using checkpoint::Reader;
  using checkpoint::Writer;
  auto connection = MR_TRY(object::Connection::Open({}));
  auto state = MakeState(mib);
  std::vector<checkpoint::SavePiece> pieces;
  for (const auto& [name, bytes] : state)
    pieces.push_back({name, {checkpoint::DType::kF32, {static_cast<std::int64_t>(bytes.size() / 4)}}, 0, bytes});

  MemoryBudget budget((mib + 16) * kMiB);
  Writer::Options options{.url = url, .retention = {.keep_last = 1}, .snapshot_bytes = (mib + 1) * kMiB};
  auto writer = MR_TRY(Writer::Open(*connection, checkpoint::SingleProcessGroup(), budget, options));
  MR_TRY(writer->Wait());  // until the buffer's pages are there, as they are after a run's first steps
  for (int step = 1; step <= saves; ++step) {
    MR_TRY(writer->Save(step, pieces, {}));
    auto stats = MR_TRY(writer->Wait());
    Print({{"event", "save"},
           {"bytes", stats->bytes},
           {"blocked_ms", Milliseconds(stats->blocked)},
           {"total_ms", Milliseconds(stats->total)}});
  }

  auto reader = MR_TRY(Reader::Open(*connection, url));
  for (int round = 0; round < 2; ++round) {
    TimePoint started = SystemClock().Now();
    auto verified = MR_TRY(reader->Verify());
    double ms = Milliseconds(SystemClock().Now() - started);
    Print({{"event", "verify"}, {"bytes", verified.bytes}, {"ms", ms}, {"mb_per_s", verified.bytes / 1e3 / ms}});
  }
  std::vector<Reader::Wanted> wanted;
  for (auto& [name, bytes] : state) wanted.push_back({name, 0, bytes});
  TimePoint started = SystemClock().Now();
  MR_TRY(reader->ReadMany(wanted));
  double ms = Milliseconds(SystemClock().Now() - started);
  Print({{"event", "load"}, {"ms", ms}, {"mb_per_s", mib * kMiB / 1e3 / ms}});
  return {};
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: checkpoint_save URL MIB SAVES\n");
    return 2;
  }
  auto status = millrace::Run(argv[1], std::strtoull(argv[2], nullptr, 10), std::atoi(argv[3]));
  if (!status) fmt::print(stderr, "checkpoint_save: {}\n", status.error().ToString());
  return status ? 0 : 1;
}
