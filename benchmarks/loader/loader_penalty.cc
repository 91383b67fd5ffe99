// Measures what streaming costs a consumer: the same epoch from memory and from a store with a latency per request.
//
//   loader_penalty TOKENIZER [FILE_KB] [TOTAL_MB] [LATENCY_MS] [BATCH_MS]      defaults 570, 100, 50, 20
//
// Both run side by side, each with a loader and a consumer of its own that works (sleeps) BATCH_MS on every batch of 8
// sequences of 512 tokens.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"
#include "millrace/data/loader.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"
#include "millrace/tokenizer/formats/load.h"

namespace millrace::data {
namespace {

class OneStore final : public object::Connection {
 public:
  explicit OneStore(std::shared_ptr<object::Store> store) : store_(std::move(store)) {}
  Result<std::shared_ptr<object::Store>> OpenStore(const object::Url&) override { return store_; }
  Result<std::shared_ptr<object::Service>> OpenService() override { return Fail(Code::kUnsupported, "no service"); }

 private:
  std::shared_ptr<object::Store> store_;
};

/// Words of a small vocabulary. Only their number matters here.
Status MakeCorpus(object::Store& store, std::uint64_t file_bytes, std::uint64_t total_bytes) {
  Random random(1);
  std::vector<std::string> words(2000);
  for (std::string& word : words) {
    for (std::uint64_t n = 2 + random.Below(8); n > 0; --n) word += static_cast<char>('a' + random.Below(26));
  }
  for (std::uint64_t file = 0, made = 0; made < total_bytes; ++file) {
    std::string lines;
    while (lines.size() < file_bytes) {
      std::string text;
      for (std::uint64_t n = 50 + random.Below(1000); n > 0; --n)
        text.append(words[random.Below(words.size())]).append(" ");
      lines += DumpJson({{"text", text}}) + "\n";
    }
    made += lines.size();
    MR_TRY(object::Put(store, fmt::format("data/{:06}.jsonl", file), AsBytes(lines)));
  }
  return {};
}

struct Epoch {
  double seconds = 0, waited = 0, first = 0;
  std::uint64_t batches = 0;
  Status outcome;
};

Epoch Consume(std::shared_ptr<Dataset> dataset, Duration work) {
  Epoch epoch;
  MemoryBudget budget(512 * kMiB);
  auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
  TimePoint began = SystemClock().Now();
  auto loader = Loader::Start(std::move(dataset), budget, {.global_batch = 8, .micro_batch = 8, .threads = 2}, {});
  if (!loader) {
    epoch.outcome = std::unexpected(loader.error());
    return epoch;
  }
  for (; epoch.batches < (*loader)->batches_per_epoch(); ++epoch.batches) {
    auto batch = (*loader)->Next();
    if (!batch) {
      epoch.outcome = std::unexpected(batch.error());
      return epoch;
    }
    if (epoch.batches == 0) epoch.first = seconds(SystemClock().Now() - began);
    std::this_thread::sleep_for(work);
  }
  epoch.seconds = seconds(SystemClock().Now() - began);
  epoch.waited = seconds((*loader)->stats().waited);
  return epoch;
}

Status Run(int argc, char** argv) {
  if (argc < 2) {
    return Fail(Code::kInvalidArgument, "usage: loader_penalty TOKENIZER [FILE_KB] [TOTAL_MB] [LATENCY_MS] [BATCH_MS]");
  }
  auto number = [&](int i, long otherwise) { return argc > i ? std::atol(argv[i]) : otherwise; };
  const auto file = static_cast<std::uint64_t>(number(2, 570)) * 1000;
  const auto total = static_cast<std::uint64_t>(number(3, 100)) * 1'000'000;
  const std::chrono::milliseconds latency(number(4, 50)), work(number(5, 20));
  auto model = MR_TRY(ReadFile(argv[1]));
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer = MR_TRY(tokenizer::Load(AsBytes(model), argv[1]));
  std::shared_ptr<object::Store> memory = object::MakeMemoryStore();
  MR_TRY(MakeCorpus(*memory, file, total));
  auto slow = object::FaultStore::Create(memory);
  OneStore near(memory), far(slow);
  DatasetOptions options{.sources = {{"s3://bench/data/"}}, .sequence_length = 512};
  auto dataset = MR_TRY(Dataset::Open(near, tokenizer, options, {}));
  auto distant = MR_TRY(Dataset::Open(far, tokenizer, options, {}));
  slow->Add({.operation = object::Operation::kGet, .times = -1, .fault = {.latency = latency}});
  Epoch local, remote;
  {
    std::jthread beside([&] { local = Consume(dataset, work); });
    remote = Consume(distant, work);
  }
  MR_TRY(std::move(local.outcome));
  MR_TRY(std::move(remote.outcome));
  fmt::print(
      "files of {} KB, {} ms a request, {} batches of {} ms: from memory {:.2f} s (waited {:.3f} s, first batch {:.0f} "
      "ms), streamed {:.2f} s (waited {:.3f} s, first batch {:.0f} ms): {:+.3f} %\n",
      file / 1000, latency.count(), remote.batches, work.count(), local.seconds, local.waited, local.first * 1e3,
      remote.seconds, remote.waited, remote.first * 1e3, (remote.seconds / local.seconds - 1) * 100);
  return {};
}

}  // namespace
}  // namespace millrace::data

int main(int argc, char** argv) {
  auto done = millrace::data::Run(argc, argv);
  if (done) return 0;
  std::fprintf(stderr, "loader_penalty: %s\n", done.error().ToString().c_str());
  return 1;
}
