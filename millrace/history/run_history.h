// The history of a training run: its speed, losses, waits, checkpoints and ranks. Rank 0 writes it, `millrace top` and
// the HTML report read it. The size is bounded, however long the run is. docs/formats/run-history.md describes the
// JSON.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::history {

/// The times of one step or of several, in seconds. Each rank measures its own.
struct StepTimes {
  double step = 0, data_wait = 0, comm_wait = 0, checkpoint_wait = 0;
  std::map<std::string, double> data_wait_on;  ///< data_wait by the stage of the loader that was waited for

  void Add(const StepTimes& other);
  void Scale(double factor);
  bool operator==(const StepTimes&) const = default;
};

/// Consecutive steps of one point of a chart.
struct ChartPoint {
  std::uint64_t first_step = 0, last_step = 0;
  double loss = 0;               ///< mean of the steps that have one; see `losses`
  std::uint64_t losses = 0;      ///< steps with a finite loss
  double lr = 0, grad_norm = 0;  ///< of the last step
  std::uint64_t tokens = 0;      ///< of all ranks
  double flops = 0;              ///< of all ranks
  StepTimes times;               ///< sums, of rank 0

  std::uint64_t steps() const { return last_step - first_step + 1; }
  double tokens_per_s() const { return times.step > 0 ? static_cast<double>(tokens) / times.step : 0; }
  bool operator==(const ChartPoint&) const = default;
};

/// The figures of a GPU. Figures that its driver does not report are absent.
struct GpuFigures {
  std::optional<double> utilization;  ///< share of the last second or less in which it computed
  std::optional<double> celsius, watts;
  bool any() const { return utilization || celsius || watts; }
  bool operator==(const GpuFigures&) const = default;
};

/// The last report of one rank. Times are means of the steps since its report before.
struct RankFigures {
  StepTimes times;
  std::uint64_t memory_bytes = 0;      ///< resident
  std::uint64_t gpu_memory_bytes = 0;  ///< in use on its GPU, by all processes; 0: it has none
  GpuFigures gpu;                      ///< of its GPU
  double busy_cores = 0;               ///< processor time over wall time
  int stage = 0;                       ///< of the pipeline
  double slowness = 1;                 ///< its own time over the median of its peers: see FindSlowness()
  bool straggles = false;              ///< slower than its peers for many steps
  bool operator==(const RankFigures&) const = default;
};

struct CheckpointNote {
  std::uint64_t step = 0;
  std::string tier;         ///< "store", "local"
  std::uint64_t bytes = 0;  ///< of rank 0's share
  double seconds = 0;       ///< until it was committed
  double time = 0;          ///< seconds since 1970
  std::string error;        ///< not empty: it failed
  bool operator==(const CheckpointNote&) const = default;
};

struct EvaluationNote {
  std::uint64_t step = 0;
  std::map<std::string, double> metrics;
  bool operator==(const EvaluationNote&) const = default;
};

/// A start of the ranks: the first, or after a failure or a stop.
struct StartNote {
  double time = 0;                 ///< seconds since 1970
  std::uint64_t resumed_from = 0;  ///< steps done before
  bool operator==(const StartNote&) const = default;
};

/// The numbers of a plan that views show.
struct RunFacts {
  std::string name, precision, checkpoint_url;
  int ranks = 1;
  std::uint64_t steps = 0, parameters = 0, global_batch = 0, sequence_length = 0;
  /// Floating-point operations a second that the machine's description promises for all ranks; 0: unknown.
  double flops_rate = 0;
  bool operator==(const RunFacts&) const = default;
};

/// Plain data with bounds. One thread at a time.
class RunHistory {
 public:
  static constexpr std::size_t kMaxPoints = 512;  ///< two for each pixel column of a small chart
  static constexpr std::size_t kMaxNotes = 256;   ///< of each kind; the oldest go first

  /// Begins, or goes on after a restart. Points, checkpoints and evaluations after step `resumed_from` are dropped,
  /// because the run makes these steps again.
  void Start(RunFacts facts, double time, std::uint64_t resumed_from);
  /// Adds a step, or takes the place of those from this step on, if the run went back. Halves the number of points
  /// when there are too many, by joining neighbours.
  void AddStep(ChartPoint step, double time);
  void AddCheckpoint(CheckpointNote note);
  void AddEvaluation(EvaluationNote note);
  void SetRanks(std::vector<RankFigures> ranks) { ranks_ = std::move(ranks); }

  const RunFacts& facts() const { return facts_; }
  const std::vector<ChartPoint>& points() const { return points_; }
  const std::vector<RankFigures>& ranks() const { return ranks_; }
  const std::vector<CheckpointNote>& checkpoints() const { return checkpoints_; }
  const std::vector<EvaluationNote>& evaluations() const { return evaluations_; }
  const std::vector<StartNote>& starts() const { return starts_; }
  /// The latest step, alone. Nothing before the first step of an attempt.
  const std::optional<ChartPoint>& latest() const { return latest_; }
  double updated() const { return updated_; }  ///< time of the latest step, seconds since 1970
  /// Returns the share of the promised rate that `point` reached; nothing if the rate is unknown.
  std::optional<double> Utilization(const ChartPoint& point) const;

  Json ToJson() const;
  /// Errors: kCorrupt if the text is not a history of this version, or is larger than the bounds.
  static Result<RunHistory> Parse(std::string_view text, std::string_view what);
  bool operator==(const RunHistory&) const = default;

 private:
  RunFacts facts_;
  std::vector<StartNote> starts_;
  std::uint64_t stride_ = 1;  ///< steps of a full point
  std::vector<ChartPoint> points_;
  std::optional<ChartPoint> latest_;
  double updated_ = 0;
  std::vector<RankFigures> ranks_;
  std::vector<CheckpointNote> checkpoints_;
  std::vector<EvaluationNote> evaluations_;
};

/// The file of the history in a job's folder.
inline constexpr std::string_view kHistoryFile = "history.json";
/// Bounds a history's JSON: 4096 ranks and all notes and points are less.
inline constexpr std::uint64_t kMaxHistoryBytes = 8 << 20;

}  // namespace millrace::history
