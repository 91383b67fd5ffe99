// checkpoint_save URL MIB: holds a state of MIB mebibytes. Reads one command per line from standard input. Answers each
// with one JSON object per line; times are in milliseconds:
//
//   copy        the state into warm memory, with two threads: the upper bound for any copy
//   save        the caller changes its tensors as soon as Save returns
//   overlap     Start, then a step of training (two threads read all of the state twice and compute with it, some
//               seconds for 2 GiB), then WaitCopied: the caller changes its tensors after the step
//   load        the newest checkpoint into the memory of `copy`; every byte is compared with what was saved
//   memory      the most this process has had in memory beyond the state itself and what `copy` writes to
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/object/open/open.h"

namespace millrace {
namespace {

using checkpoint::Reader;
using checkpoint::Writer;

double Milliseconds(Duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

void Print(const Json& line) {
  fmt::print("{}\n", DumpJson(line));
  std::fflush(stdout);
}

/// Memory as an allocator of tensors provides it: mapped from the system, with huge pages if it grants them.
MutableByteSpan Allocate(std::uint64_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) std::abort();
  ::madvise(data, bytes, MADV_HUGEPAGE);
  std::memset(data, 1, bytes);
  return {static_cast<std::byte*>(data), bytes};
}

/// Calls `part(begin, end)` for each half of `bytes`, on two threads.
void InTwo(std::uint64_t bytes, const std::function<void(std::uint64_t, std::uint64_t)>& part) {
  std::thread other([&] { part(bytes / 2, bytes); });
  part(0, bytes / 2);
  other.join();
}

class Bench {
 public:
  Bench(std::string url, std::uint64_t mib)
      : url_(std::move(url)), state_(Allocate(mib * kMiB)), copy_(Allocate(mib * kMiB)), budget_((mib + 16) * kMiB) {
    Random random(1);
    for (std::size_t at = 0; at < state_.size(); at += 8) StoreLittle(state_.data() + at, random.Next());
    // Alternates the sizes of a model's matrices and norms; each is a parameter and its two moments.
    constexpr std::uint64_t kSizes[] = {16 * kMiB, 16 * kMiB, 4 * kMiB, 4 * kMiB, 8 * kKiB};
    std::uint64_t at = 0;
    for (int i = 0; at < state_.size(); ++i) {
      const std::uint64_t bytes = std::min(kSizes[i / 3 % std::size(kSizes)], state_.size() - at);
      constexpr const char* kGroups[] = {"model", "optimizer/exp_avg", "optimizer/exp_avg_sq"};
      slices_.push_back({fmt::format("{}/layer.{}.weight", kGroups[i % 3], i / 3),
                         {checkpoint::DType::kF32, {static_cast<std::int64_t>(bytes / 4)}},
                         0,
                         state_.subspan(at, bytes)});
      at += bytes;
    }
  }

  Status Open() {
    connection_ = MR_TRY(object::OpenConnection({}));
    Writer::Options options{
        .url = url_, .retention = {.keep_last = 1}, .snapshot_bytes = state_.size() + kMiB, .log = Logger()};
    writer_ = MR_TRY(Writer::Open(*connection_, checkpoint::SingleRankExchange(), budget_, options));
    MR_TRY(writer_->Wait());  // allocates the buffer's pages, as after a run's first save
    return {};
  }

  Status Do(const std::string& command) {
    const TimePoint started = SystemClock().Now();
    auto since = [&] { return Milliseconds(SystemClock().Now() - started); };
    Json answer = Json::object();
    if (command == "copy") {
      InTwo(state_.size(),
            [&](auto begin, auto end) { std::memcpy(copy_.data() + begin, state_.data() + begin, end - begin); });
      answer["ms"] = since();
    } else if (command == "save") {
      MR_TRY(writer_->Save(++step_, slices_, {}));
      Change();
      MR_TRY(Finish(answer));
    } else if (command == "overlap") {
      MR_TRY(writer_->Start(++step_, slices_, {}));
      const double started_in = since();
      Work();
      const double worked = since();
      writer_->WaitCopied();
      const double copied = since();
      Change();
      MR_TRY(Finish(answer));
      answer["blocked_ms"] = started_in + copied - worked;
    } else if (command == "load") {
      auto reader = MR_TRY(Reader::Open(*connection_, url_));
      std::vector<Reader::TensorRange> wanted;
      for (const auto& slice : slices_)
        wanted.push_back({slice.name, 0, copy_.subspan(slice.bytes.data() - state_.data(), slice.bytes.size())});
      MR_TRY(reader->ReadMany(wanted));
      answer["ms"] = since();
      Change(-1);
      const bool same = std::memcmp(copy_.data(), state_.data(), state_.size()) == 0;
      Change(1);
      if (!same) return Fail(Code::kCorrupt, "other bytes were loaded than were saved");
    } else if (command == "memory") {
      std::ifstream status("/proc/self/status");
      for (std::string word; status >> word;)
        if (std::uint64_t kib; word == "VmHWM:" && status >> kib)
          answer["bytes"] = static_cast<std::int64_t>(kib * kKiB) - 2 * static_cast<std::int64_t>(state_.size());
    } else {
      return Fail(Code::kInvalidArgument, "unknown command \"{}\"", command);
    }
    Print(answer);
    return {};
  }

 private:
  /// Stands for the optimizer's step: changes the bytes of every tensor.
  void Change(int by = 1) {
    for (const auto& slice : slices_) {
      auto* first = const_cast<std::byte*>(slice.bytes.data());
      *first = static_cast<std::byte>(static_cast<int>(*first) + by);
    }
  }
  void Work() {
    InTwo(state_.size(), [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t sum = 0;
      for (int pass = 0; pass < 2; ++pass) {
        for (std::uint64_t at = begin; at < end; at += 64) {
          std::uint64_t value = LoadLittle<std::uint64_t>(state_.data() + at);
          for (int i = 0; i < 128; ++i) value = value * 6364136223846793005u + 1442695040888963407u;
          sum += value;
        }
      }
      asm volatile("" : : "r"(sum));
    });
  }
  Status Finish(Json& answer) {
    auto stats = MR_TRY(writer_->Wait());
    answer["blocked_ms"] = Milliseconds(stats->blocked);
    answer["total_ms"] = Milliseconds(stats->total);
    return {};
  }

  const std::string url_;
  const MutableByteSpan state_, copy_;
  std::vector<checkpoint::SaveSlice> slices_;
  MemoryBudget budget_;
  std::unique_ptr<object::Connection> connection_;
  std::unique_ptr<Writer> writer_;
  std::uint64_t step_ = 0;
};

Status Run(const std::string& url, std::uint64_t mib) {
  Bench bench(url, mib);
  MR_TRY(bench.Open());
  Print({{"ready", true}});
  for (std::string command; std::getline(std::cin, command);) MR_TRY(bench.Do(command));
  return {};
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: checkpoint_save URL MIB <COMMANDS\n");
    return 2;
  }
  auto status = millrace::Run(argv[1], std::strtoull(argv[2], nullptr, 10));
  if (!status) fmt::print(stderr, "checkpoint_save: {}\n", status.error().ToString());
  return status ? 0 : 1;
}
