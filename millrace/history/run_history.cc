#include "millrace/history/run_history.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace millrace::history {
namespace {

constexpr int kVersion = 1;
constexpr std::size_t kMaxRanks = 4096;

/// Nine digits distinguish float32 values; microseconds are enough for times. Numbers that are not finite are null.
Json Rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == 0) return 0;
  const double unit = std::pow(10.0, 8 - std::floor(std::log10(std::abs(value))));
  const double rounded = std::round(value * unit) / unit;
  return std::isfinite(rounded) ? rounded : value;
}
Json Seconds(double value) { return std::round(value * 1e6) / 1e6; }

/// Joins `next` to `point`, which it follows.
void Join(ChartPoint& point, const ChartPoint& next) {
  const std::uint64_t losses = point.losses + next.losses;
  if (losses > 0) {
    point.loss = (point.loss * static_cast<double>(point.losses) + next.loss * static_cast<double>(next.losses)) /
                 static_cast<double>(losses);
  }
  point.losses = losses;
  point.last_step = next.last_step;
  point.lr = next.lr;
  point.grad_norm = next.grad_norm;
  point.tokens += next.tokens;
  point.flops += next.flops;
  point.times.Add(next.times);
}

template <class Note>
void Append(std::vector<Note>& notes, Note note) {
  if (notes.size() >= RunHistory::kMaxNotes) notes.erase(notes.begin());
  notes.push_back(std::move(note));
}

Json TimesToJson(const StepTimes& times) {
  Json on = Json::object();
  for (const auto& [stage, seconds] : times.data_wait_on) on[stage] = Seconds(seconds);
  return {{"step_s", Seconds(times.step)},
          {"data_wait_s", Seconds(times.data_wait)},
          {"data_wait_on_s", std::move(on)},
          {"comm_wait_s", Seconds(times.comm_wait)},
          {"checkpoint_wait_s", Seconds(times.checkpoint_wait)}};
}

Result<StepTimes> TimesFromJson(const Json& json) {
  StepTimes times;
  times.step = MR_TRY(JsonNumber(json, "step_s"));
  times.data_wait = MR_TRY(JsonNumber(json, "data_wait_s"));
  times.comm_wait = MR_TRY(JsonNumber(json, "comm_wait_s"));
  times.checkpoint_wait = MR_TRY(JsonNumber(json, "checkpoint_wait_s"));
  const Json* on = JsonFind(json, "data_wait_on_s");
  if (on == nullptr || !on->is_object() || on->size() > 16) return Fail(Code::kCorrupt, "has no data_wait_on_s");
  for (const auto& [stage, seconds] : on->items()) times.data_wait_on[stage] = MR_TRY(JsonNumber(*on, stage));
  return times;
}

Json PointToJson(const ChartPoint& point) {
  Json json = {{"first_step", point.first_step},
               {"last_step", point.last_step},
               {"loss", point.losses > 0 ? Rounded(point.loss) : Json()},
               {"losses", point.losses},
               {"lr", Rounded(point.lr)},
               {"grad_norm", Rounded(point.grad_norm)},
               {"tokens", point.tokens},
               {"flops", Rounded(point.flops)}};
  json.update(TimesToJson(point.times));
  return json;
}

/// A number that may be null, which is 0.
Result<double> NumberOrNull(const Json& json, std::string_view key) {
  const Json* value = JsonFind(json, key);
  if (value != nullptr && value->is_null()) return 0.0;
  return JsonNumber(json, key);
}

Result<ChartPoint> PointFromJson(const Json& json) {
  ChartPoint point;
  point.first_step = MR_TRY(JsonUint(json, "first_step"));
  point.last_step = MR_TRY(JsonUint(json, "last_step"));
  point.loss = MR_TRY(NumberOrNull(json, "loss"));
  point.losses = MR_TRY(JsonUint(json, "losses"));
  point.lr = MR_TRY(NumberOrNull(json, "lr"));
  point.grad_norm = MR_TRY(NumberOrNull(json, "grad_norm"));
  point.tokens = MR_TRY(JsonUint(json, "tokens"));
  point.flops = MR_TRY(NumberOrNull(json, "flops"));
  point.times = MR_TRY(TimesFromJson(json));
  if (point.last_step < point.first_step) return Fail(Code::kCorrupt, "has a point that ends before it begins");
  return point;
}

Json RankToJson(const RankFigures& rank) {
  Json json = TimesToJson(rank.times);
  json.update({{"memory_bytes", rank.memory_bytes},
               {"busy_cores", Rounded(rank.busy_cores)},
               {"stage", rank.stage},
               {"slowness", Rounded(rank.slowness)},
               {"straggles", rank.straggles}});
  if (rank.gpu_memory_bytes > 0) json["gpu_memory_bytes"] = rank.gpu_memory_bytes;
  if (rank.gpu.utilization) json["gpu_utilization"] = Rounded(*rank.gpu.utilization);
  if (rank.gpu.celsius) json["gpu_celsius"] = Rounded(*rank.gpu.celsius);
  if (rank.gpu.watts) json["gpu_watts"] = Rounded(*rank.gpu.watts);
  return json;
}

Result<bool> Flag(const Json& json, std::string_view key) {
  const Json* value = JsonFind(json, key);
  if (value == nullptr || !value->is_boolean()) return Fail(Code::kCorrupt, "has no {}", key);
  return value->get<bool>();
}

Result<std::optional<double>> OptionalNumber(const Json& json, std::string_view key) {
  if (JsonFind(json, key) == nullptr) return std::optional<double>();
  return std::optional(MR_TRY(JsonNumber(json, key)));
}

Result<RankFigures> RankFromJson(const Json& json) {
  RankFigures rank;
  rank.times = MR_TRY(TimesFromJson(json));
  rank.memory_bytes = MR_TRY(JsonUint(json, "memory_bytes"));
  if (JsonFind(json, "gpu_memory_bytes") != nullptr) rank.gpu_memory_bytes = MR_TRY(JsonUint(json, "gpu_memory_bytes"));
  rank.gpu.utilization = MR_TRY(OptionalNumber(json, "gpu_utilization"));
  rank.gpu.celsius = MR_TRY(OptionalNumber(json, "gpu_celsius"));
  rank.gpu.watts = MR_TRY(OptionalNumber(json, "gpu_watts"));
  rank.busy_cores = MR_TRY(JsonNumber(json, "busy_cores"));
  rank.stage = static_cast<int>(MR_TRY(JsonInt(json, "stage")));
  rank.slowness = MR_TRY(JsonNumber(json, "slowness"));
  rank.straggles = MR_TRY(Flag(json, "straggles"));
  return rank;
}

Json CheckpointToJson(const CheckpointNote& note) {
  Json json = {{"step", note.step},
               {"tier", note.tier},
               {"bytes", note.bytes},
               {"seconds", Seconds(note.seconds)},
               {"time", Seconds(note.time)}};
  if (!note.error.empty()) json["error"] = note.error;
  return json;
}

Result<CheckpointNote> CheckpointFromJson(const Json& json) {
  CheckpointNote note;
  note.step = MR_TRY(JsonUint(json, "step"));
  note.tier = MR_TRY(JsonString(json, "tier"));
  note.bytes = MR_TRY(JsonUint(json, "bytes"));
  note.seconds = MR_TRY(JsonNumber(json, "seconds"));
  note.time = MR_TRY(JsonNumber(json, "time"));
  if (JsonFind(json, "error") != nullptr) note.error = MR_TRY(JsonString(json, "error"));
  return note;
}

Json EvaluationToJson(const EvaluationNote& note) {
  Json metrics = Json::object();
  for (const auto& [name, value] : note.metrics) metrics[name] = Rounded(value);
  return {{"step", note.step}, {"metrics", std::move(metrics)}};
}

Result<EvaluationNote> EvaluationFromJson(const Json& json) {
  EvaluationNote note;
  note.step = MR_TRY(JsonUint(json, "step"));
  const Json* metrics = JsonFind(json, "metrics");
  if (metrics == nullptr || !metrics->is_object() || metrics->size() > 64)
    return Fail(Code::kCorrupt, "has no metrics");
  for (const auto& [name, value] : metrics->items()) note.metrics[name] = MR_TRY(NumberOrNull(*metrics, name));
  return note;
}

Result<StartNote> StartFromJson(const Json& json) {
  StartNote note;
  note.time = MR_TRY(JsonNumber(json, "time"));
  note.resumed_from = MR_TRY(JsonUint(json, "resumed_from"));
  return note;
}

template <class T, class ToJson>
Json ListToJson(const std::vector<T>& values, ToJson to_json) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(to_json(value));
  return list;
}

template <class T>
Result<std::vector<T>> ListFromJson(const Json& json, std::string_view key, std::size_t most,
                                    Result<T> (*from_json)(const Json&)) {
  const Json* list = JsonFind(json, key);
  if (list == nullptr || !list->is_array()) return Fail(Code::kCorrupt, "has no list \"{}\"", key);
  if (list->size() > most) return Fail(Code::kCorrupt, "has {} {}; {} are the most", list->size(), key, most);
  std::vector<T> values;
  for (const Json& each : *list) values.push_back(MR_TRY(from_json(each)));
  return values;
}

Json FactsToJson(const RunFacts& facts) {
  return {{"name", facts.name},
          {"precision", facts.precision},
          {"checkpoint_url", facts.checkpoint_url},
          {"ranks", facts.ranks},
          {"steps", facts.steps},
          {"parameters", facts.parameters},
          {"global_batch", facts.global_batch},
          {"sequence_length", facts.sequence_length},
          {"flops_rate", Rounded(facts.flops_rate)}};
}

Result<RunFacts> FactsFromJson(const Json& json) {
  RunFacts facts;
  facts.name = MR_TRY(JsonString(json, "name"));
  facts.precision = MR_TRY(JsonString(json, "precision"));
  facts.checkpoint_url = MR_TRY(JsonString(json, "checkpoint_url"));
  facts.ranks = static_cast<int>(MR_TRY(JsonInt(json, "ranks")));
  facts.steps = MR_TRY(JsonUint(json, "steps"));
  facts.parameters = MR_TRY(JsonUint(json, "parameters"));
  facts.global_batch = MR_TRY(JsonUint(json, "global_batch"));
  facts.sequence_length = MR_TRY(JsonUint(json, "sequence_length"));
  facts.flops_rate = MR_TRY(JsonNumber(json, "flops_rate"));
  return facts;
}

}  // namespace

void StepTimes::Add(const StepTimes& other) {
  step += other.step;
  data_wait += other.data_wait;
  comm_wait += other.comm_wait;
  checkpoint_wait += other.checkpoint_wait;
  for (const auto& [stage, seconds] : other.data_wait_on) data_wait_on[stage] += seconds;
}

void StepTimes::Scale(double factor) {
  step *= factor;
  data_wait *= factor;
  comm_wait *= factor;
  checkpoint_wait *= factor;
  for (auto& [stage, seconds] : data_wait_on) seconds *= factor;
}

void RunHistory::Start(RunFacts facts, double time, std::uint64_t resumed_from) {
  if (resumed_from == 0 || facts.name != facts_.name) *this = {};
  facts_ = std::move(facts);
  std::erase_if(points_, [&](const ChartPoint& point) { return point.last_step > resumed_from; });
  std::erase_if(checkpoints_, [&](const CheckpointNote& note) { return note.step > resumed_from; });
  std::erase_if(evaluations_, [&](const EvaluationNote& note) { return note.step > resumed_from; });
  latest_.reset();
  ranks_.clear();
  Append(starts_, StartNote{.time = time, .resumed_from = resumed_from});
  updated_ = time;
}

void RunHistory::AddStep(ChartPoint step, double time) {
  if (!std::isfinite(step.loss)) step.loss = 0, step.losses = 0;
  updated_ = time;
  latest_ = step;
  std::erase_if(points_, [&](const ChartPoint& point) { return point.last_step >= step.first_step; });
  if (!points_.empty() && points_.back().last_step + 1 == step.first_step && points_.back().steps() < stride_) {
    Join(points_.back(), step);
    return;
  }
  points_.push_back(std::move(step));
  if (points_.size() <= kMaxPoints) return;
  std::vector<ChartPoint> joined;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    if (i % 2 == 0) {
      joined.push_back(std::move(points_[i]));
    } else {
      Join(joined.back(), points_[i]);
    }
  }
  points_ = std::move(joined);
  stride_ *= 2;
}

void RunHistory::AddCheckpoint(CheckpointNote note) { Append(checkpoints_, std::move(note)); }
void RunHistory::AddEvaluation(EvaluationNote note) { Append(evaluations_, std::move(note)); }

std::optional<double> RunHistory::Utilization(const ChartPoint& point) const {
  if (facts_.flops_rate <= 0 || point.times.step <= 0) return std::nullopt;
  return point.flops / point.times.step / facts_.flops_rate;
}

Json RunHistory::ToJson() const {
  Json json = {{"version", kVersion},
               {"facts", FactsToJson(facts_)},
               {"updated", Seconds(updated_)},
               {"stride", stride_},
               {"latest", latest_ ? PointToJson(*latest_) : Json()}};
  json["ranks"] = ListToJson(ranks_, RankToJson);
  json["checkpoints"] = ListToJson(checkpoints_, CheckpointToJson);
  json["evaluations"] = ListToJson(evaluations_, EvaluationToJson);
  json["starts"] = ListToJson(starts_, [](const StartNote& note) {
    return Json{{"time", Seconds(note.time)}, {"resumed_from", note.resumed_from}};
  });
  json["points"] = ListToJson(points_, PointToJson);
  return json;
}

Result<RunHistory> RunHistory::Parse(std::string_view text, std::string_view what) {
  const auto parse = [&]() -> Result<RunHistory> {
    const Json json = MR_TRY(ParseJson(text, what, {.bytes = kMaxHistoryBytes}));
    if (MR_TRY(JsonInt(json, "version")) != kVersion) return Fail(Code::kCorrupt, "is of another version of Millrace");
    const Json* facts = JsonFind(json, "facts");
    if (facts == nullptr) return Fail(Code::kCorrupt, "has no facts");
    RunHistory history;
    history.facts_ = MR_TRY(FactsFromJson(*facts));
    history.updated_ = MR_TRY(JsonNumber(json, "updated"));
    history.stride_ = MR_TRY(JsonUint(json, "stride"));
    if (const Json* latest = JsonFind(json, "latest"); latest != nullptr && !latest->is_null()) {
      history.latest_ = MR_TRY(PointFromJson(*latest));
    }
    history.ranks_ = MR_TRY(ListFromJson(json, "ranks", kMaxRanks, &RankFromJson));
    history.checkpoints_ = MR_TRY(ListFromJson(json, "checkpoints", kMaxNotes, &CheckpointFromJson));
    history.evaluations_ = MR_TRY(ListFromJson(json, "evaluations", kMaxNotes, &EvaluationFromJson));
    history.starts_ = MR_TRY(ListFromJson(json, "starts", kMaxNotes, &StartFromJson));
    history.points_ = MR_TRY(ListFromJson(json, "points", kMaxPoints, &PointFromJson));
    return history;
  };
  auto history = parse();
  if (!history) return Fail(history.error().Context(std::string(what)).WithCode(Code::kCorrupt));
  return history;
}

}  // namespace millrace::history
