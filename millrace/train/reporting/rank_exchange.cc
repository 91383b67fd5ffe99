#include "millrace/train/reporting/rank_exchange.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/engine/errors.h"
#include "millrace/train/reporting/stopwatch.h"

namespace millrace::train {
namespace {

/// The numbers of a rank, in the order of the all-gather. The stages of data waits follow kFixedNumbers.
enum RankNumber {
  kStepS,
  kDataS,
  kCommS,
  kCheckpointS,
  kMemory,
  kGpuMemory,
  kCores,
  kStage,
  kNextAfter,
  kGpuUtilization,
  kGpuCelsius,
  kGpuWatts,
  kFixedNumbers
};
constexpr std::int64_t kNumbers = kFixedNumbers + data::kLoadStages;

constexpr std::uint64_t kMaxSteps = 4096;  // a guess: figures come within a minute, even if steps become much slower

std::string StageName(int stage) { return std::string(data::LoadStageName(static_cast<data::LoadStage>(stage))); }

double ProcessorSeconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// Returns the resident memory: the second number of /proc/self/statm, in pages (proc_pid_statm(5)).
double ResidentBytes() {
  const auto statm = ReadFile("/proc/self/statm", 256);
  const std::size_t space = statm ? statm->find(' ') : std::string::npos;
  if (space == std::string::npos) return 0;
  std::uint64_t pages = 0;
  std::from_chars(statm->data() + space + 1, statm->data() + statm->size(), pages);
  return static_cast<double>(pages) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

constexpr double kAbsent = -1;  // a figure that the GPU's driver does not tell

std::optional<double> Present(double number) { return number == kAbsent ? std::nullopt : std::optional(number); }

void PutLoad(const nvml::GpuLoad& load, double* numbers) {
  numbers[kGpuUtilization] = load.utilization ? *load.utilization / 100.0 : kAbsent;
  numbers[kGpuCelsius] = load.celsius ? std::max(0, *load.celsius) : kAbsent;
  numbers[kGpuWatts] = load.watts.value_or(kAbsent);
}

history::RankFigures FiguresOf(const double* numbers) {
  history::RankFigures figures;
  figures.times = {.step = numbers[kStepS],
                   .data_wait = numbers[kDataS],
                   .comm_wait = numbers[kCommS],
                   .checkpoint_wait = numbers[kCheckpointS]};
  for (int s = 0; s < data::kLoadStages; ++s) figures.times.data_wait_on[StageName(s)] = numbers[kFixedNumbers + s];
  figures.memory_bytes = static_cast<std::uint64_t>(numbers[kMemory]);
  figures.gpu_memory_bytes = static_cast<std::uint64_t>(numbers[kGpuMemory]);
  figures.gpu = {.utilization = Present(numbers[kGpuUtilization]),
                 .celsius = Present(numbers[kGpuCelsius]),
                 .watts = Present(numbers[kGpuWatts])};
  figures.busy_cores = numbers[kCores];
  figures.stage = static_cast<int>(numbers[kStage]);
  return figures;
}

}  // namespace

history::StepTimes TimesOf(const StepReport& report) {
  history::StepTimes times{.step = report.step_s,
                           .data_wait = report.data_wait_s,
                           .comm_wait = report.comm_wait_s,
                           .checkpoint_wait = report.checkpoint_wait_s};
  for (int s = 0; s < data::kLoadStages; ++s) times.data_wait_on[StageName(s)] = report.data_wait_on_s[s];
  return times;
}

RankExchange::RankExchange(engine::Collective& group, double interval_s, const RankPlace& place, Clock& clock)
    : group_(&group), interval_s_(interval_s), place_(place), clock_(&clock), since_(clock.Now()) {
  cpu_s_ = ProcessorSeconds();
}

Result<RankExchange> RankExchange::Make(engine::Collective& group, Duration interval, const RankPlace& place,
                                        Clock& clock) {
  const at::Tensor agreed = at::scalar_tensor(SecondsOf(interval), at::kDouble);
  MR_TRY(group.Broadcast(agreed, 0));
  return RankExchange(group, agreed.item<double>(), place, clock);
}

Result<std::optional<std::vector<history::RankFigures>>> RankExchange::AfterStep(const StepReport& report) {
  using Figures = std::optional<std::vector<history::RankFigures>>;
  if (interval_s_ <= 0) return Figures();
  sum_.Add(TimesOf(report));
  if (++steps_ < due_) return Figures();
  const double steps = static_cast<double>(steps_), wall = std::max(1e-9, SecondsOf(clock_->Now() - since_));
  const double cpu_s = ProcessorSeconds();
  sum_.Scale(1 / steps);
  const at::Tensor mine = at::zeros({kNumbers}, at::kDouble);
  auto* numbers = mine.data_ptr<double>();
  numbers[kStepS] = sum_.step;
  numbers[kDataS] = sum_.data_wait;
  numbers[kCommS] = sum_.comm_wait;
  numbers[kCheckpointS] = sum_.checkpoint_wait;
  numbers[kMemory] = ResidentBytes();
  numbers[kCores] = (cpu_s - cpu_s_) / wall;
  numbers[kGpuMemory] = static_cast<double>(engine::DeviceMemoryInUse(place_.device));
  PutLoad(place_.gpu ? place_.gpu->Read() : nvml::GpuLoad{}, numbers);
  numbers[kStage] = place_.stage;
  // All ranks must gather after the same step, but their clocks differ: they take the number of rank 0.
  numbers[kNextAfter] = std::clamp(std::round(interval_s_ / std::max(1e-9, wall / steps)), 1.0, double{kMaxSteps});
  for (int s = 0; s < data::kLoadStages; ++s) numbers[kFixedNumbers + s] = sum_.data_wait_on[StageName(s)];

  const at::Tensor all = at::zeros({group_->size() * kNumbers}, at::kDouble);
  MR_TRY(group_->AllGather(all, mine));
  std::vector<history::RankFigures> figures;
  const auto* rows = all.data_ptr<double>();
  for (int rank = 0; rank < group_->size(); ++rank) figures.push_back(FiguresOf(rows + rank * kNumbers));

  gathered_steps_ = steps_;
  steps_ = 0;
  due_ = static_cast<std::uint64_t>(rows[kNextAfter]);
  sum_ = {};
  cpu_s_ = cpu_s;
  since_ = clock_->Now();
  return Figures(std::move(figures));
}

}  // namespace millrace::train
