#include "millrace/engine/layout/parallel_options.h"

#include <array>

namespace millrace::engine {
namespace {

/// In the order of the enumerations.
constexpr std::array<std::string_view, 4> kScheduleNames = {"simple", "1f1b", "interleaved", "zero_bubble"};
constexpr std::array<std::string_view, 3> kRecomputeNames = {"none", "selective", "full"};

template <class Enum, std::size_t count>
std::optional<Enum> ParseName(const std::array<std::string_view, count>& names, std::string_view name) {
  for (std::size_t i = 0; i < count; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view PipelineScheduleName(PipelineSchedule schedule) {
  return kScheduleNames[static_cast<std::size_t>(schedule)];
}
std::optional<PipelineSchedule> ParsePipelineSchedule(std::string_view name) {
  return ParseName<PipelineSchedule>(kScheduleNames, name);
}
std::string_view RecomputeName(Recompute recompute) { return kRecomputeNames[static_cast<std::size_t>(recompute)]; }
std::optional<Recompute> ParseRecompute(std::string_view name) { return ParseName<Recompute>(kRecomputeNames, name); }

Result<MeshShape> ShapeOf(const ParallelOptions& options, int ranks) {
  if (options.tensor < 1 || ranks % options.tensor != 0) {
    return Fail(Code::kInvalidArgument, "{} ranks are not a multiple of train.parallel.tensor {}", ranks,
                options.tensor);
  }
  const int rest = ranks / options.tensor;
  if (options.pipeline < 1 || rest % options.pipeline != 0) {
    return Fail(Code::kInvalidArgument,
                "{} ranks divided by train.parallel.tensor {} are {}, not a multiple of "
                "train.parallel.pipeline {}",
                ranks, options.tensor, rest, options.pipeline);
  }
  const int data = rest / options.pipeline;
  if (options.data != 0 && options.data != data) {
    return Fail(Code::kInvalidArgument, "train.parallel.data is {}, but {} ranks / (tensor {} × pipeline {}) are {}",
                options.data, ranks, options.tensor, options.pipeline, data);
  }
  const int shard = options.shard != 0 ? options.shard : options.zero > 0 ? data : 1;
  if (shard < 1 || data % shard != 0) {
    return Fail(Code::kInvalidArgument, "{} data-parallel ranks are not a multiple of train.parallel.shard {}", data,
                shard);
  }
  if (options.zero < 0 || options.zero > 3) {
    return Fail(Code::kInvalidArgument, "train.parallel.zero is {}, not 0 to 3", options.zero);
  }
  if (shard > 1 && options.zero == 0) {
    return Fail(Code::kInvalidArgument, "train.parallel.shard is {}, but zero 0 divides nothing: set zero to 1, 2 or 3",
                shard);
  }
  if (!options.overlap && options.zero > 1) {
    return Fail(
        Code::kInvalidArgument,
        "train.parallel.overlap is false, but zero {} sums the gradients of each part during the passes, to free "
        "them: set zero to 0 or 1",
        options.zero);
  }
  if (options.virtual_stages < 1 ||
      (options.virtual_stages > 1) != (options.schedule == PipelineSchedule::kInterleaved)) {
    return Fail(Code::kInvalidArgument,
                "train.parallel.virtual_stages is {}: schedule interleaved takes 2 or more, "
                "the others take 1",
                options.virtual_stages);
  }
  if (options.virtual_stages > 1 && options.pipeline == 1) {
    return Fail(Code::kInvalidArgument, "train.parallel.virtual_stages needs train.parallel.pipeline of 2 or more");
  }
  if (options.recompute_every < 1) {
    return Fail(Code::kInvalidArgument, "train.parallel.recompute_every is {}, not 1 or more", options.recompute_every);
  }
  if (options.offload_activations && options.recompute != Recompute::kFull) {
    return Fail(
        Code::kInvalidArgument,
        "train.parallel.offload_activations keeps inputs of blocks on the host, which recompute: full alone keeps; "
        "recompute is {}",
        RecomputeName(options.recompute));
  }
  return MeshShape{.pipeline = options.pipeline, .replica = data / shard, .shard = shard, .tensor = options.tensor};
}

}  // namespace millrace::engine
