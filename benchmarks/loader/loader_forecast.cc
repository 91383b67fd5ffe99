// Compares the forecast of `millrace data plan --simulate` with a measurement: the same batches, read from a store with
// a given latency per request, over connections of a given bandwidth.
//
//   loader_forecast TOKENIZER URL TEMPLATE LATENCY_MS [BATCHES]      default 300
//
// The caller starts the store with this latency: millrace s3d --fault "latency=50ms..50ms,op=GetObject".
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/data/loader.h"
#include "millrace/data/simulate.h"
#include "millrace/object/open/open.h"
#include "millrace/tokenizer/formats/load.h"

namespace millrace::data {
namespace {

constexpr int kRows = 8, kThreads = 2;

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

struct StoreSpeed {
  std::uint64_t bandwidth = 0;  ///< bytes a second
  std::chrono::milliseconds step{};
};

Status Compare(const char* url, const DatasetOptions& options,
               const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, const StoreSpeed& speed, double latency,
               std::uint64_t batches) {
  auto connection = MR_TRY(object::OpenConnection({.bandwidth = speed.bandwidth}));
  auto dataset = MR_TRY(Dataset::Open(*connection, tokenizer, options, {}));
  batches = std::min(batches, dataset->samples_per_epoch() / kRows);
  const double seconds_per_byte = MR_TRY(dataset->MeasureEncoding());
  const Forecast forecast = dataset->Simulate({.bandwidth = static_cast<double>(speed.bandwidth),
                                               .latency = latency,
                                               .step = Seconds(speed.step),
                                               .seconds_per_byte = seconds_per_byte,
                                               .threads = kThreads},
                                              kRows, batches);
  MemoryBudget budget(512 * kMiB);
  const TimePoint began = SystemClock().Now();
  auto loader =
      MR_TRY(Loader::Start(dataset, budget, {.global_batch = kRows, .micro_batch = kRows, .threads = kThreads}, {}));
  for (std::uint64_t i = 0; i < batches; ++i) {
    MR_TRY(loader->Next());
    std::this_thread::sleep_for(speed.step);
  }
  const double took = Seconds(SystemClock().Now() - began);
  const Loader::Stats stats = loader->stats();
  fmt::print(
      "{} at {} MB/s, {:.0f} ms, steps of {} ms: forecast {:.2f} s, {:.1f} % waiting ({:.0f} % of it for the network); "
      "{:.2f} s, {:.1f} % ({:.0f} %) measured\n",
      url, speed.bandwidth / 1'000'000, latency * 1e3, speed.step.count(), forecast.seconds,
      100 * forecast.stall_share(), 100 * forecast.waited_on_network / std::max(forecast.waited, 1e-9), took,
      100 * Seconds(stats.waited) / took,
      100 * Seconds(stats.waited_on[static_cast<std::size_t>(LoadStage::kNetwork)]) /
          std::max(Seconds(stats.waited), 1e-9));
  return {};
}

Status Run(int argc, char** argv) {
  if (argc < 5) {
    return Fail(Code::kInvalidArgument, "usage: loader_forecast TOKENIZER URL TEMPLATE LATENCY_MS [BATCHES]");
  }
  const double latency = std::atof(argv[4]) / 1e3;
  const std::uint64_t batches = argc > 5 ? std::strtoull(argv[5], nullptr, 10) : 300;
  auto model = MR_TRY(ReadFile(argv[1]));
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer = MR_TRY(tokenizer::Load(AsBytes(model), argv[1]));
  const DatasetOptions options{.sources = {{argv[2]}}, .template_text = argv[3], .sequence_length = 2048};
  for (const StoreSpeed& speed : {StoreSpeed{1'000'000, std::chrono::milliseconds(20)},
                                  {4'000'000, std::chrono::milliseconds(20)},
                                  {100'000'000, std::chrono::milliseconds(20)},
                                  {100'000'000, std::chrono::milliseconds(2)}}) {
    MR_TRY(Compare(argv[2], options, tokenizer, speed, latency, batches));
  }
  return {};
}

}  // namespace
}  // namespace millrace::data

int main(int argc, char** argv) {
  auto done = millrace::data::Run(argc, argv);
  if (done) return 0;
  std::fprintf(stderr, "loader_forecast: %s\n", done.error().ToString().c_str());
  return 1;
}
