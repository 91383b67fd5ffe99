#include "benchmarks/checkpoint_scale/save_simulation.h"

#include <algorithm>
#include <cmath>

#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/save/replicas.h"

namespace millrace::checkpoint {
namespace {

/// How tensor parallelism cuts a weight.
enum class Cut { kNone, kRows, kColumns };

struct Weight {
  std::string name;
  std::vector<std::int64_t> shape;
  Cut cut = Cut::kNone;
  int stage = 0;
};

std::vector<Weight> WeightsOf(const ScaleModel& model, int stages) {
  const std::int64_t h = model.hidden, kv = model.key_value, f = model.intermediate, v = model.vocabulary;
  std::vector<Weight> weights{{"model.embed_tokens.weight", {v, h}, Cut::kRows, 0},
                              {"model.norm.weight", {h}, Cut::kNone, stages - 1},
                              {"lm_head.weight", {v, h}, Cut::kRows, stages - 1}};
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const int stage = static_cast<int>(layer * stages / model.layers);
    auto add = [&](const char* name, std::vector<std::int64_t> shape, Cut cut) {
      weights.push_back({fmt::format("model.layers.{}.{}.weight", layer, name), std::move(shape), cut, stage});
    };
    add("self_attn.q_proj", {h, h}, Cut::kRows);
    add("self_attn.k_proj", {kv, h}, Cut::kRows);
    add("self_attn.v_proj", {kv, h}, Cut::kRows);
    add("self_attn.o_proj", {h, h}, Cut::kColumns);
    add("mlp.gate_proj", {f, h}, Cut::kRows);
    add("mlp.up_proj", {f, h}, Cut::kRows);
    add("mlp.down_proj", {h, f}, Cut::kColumns);
    add("input_layernorm", {h}, Cut::kNone);
    add("post_attention_layernorm", {h}, Cut::kNone);
  }
  return weights;
}

class Simulation {
 public:
  Simulation(const ScaleModel& model, const ScaleLayout& layout, const ScaleSystem& system)
      : layout_(layout), system_(system), weights_(WeightsOf(model, layout.pipeline)) {}

  Result<ScaleSave> Run() {
    for (int stage = 0; stage < layout_.pipeline; ++stage)
      for (int tensor = 0; tensor < layout_.tensor; ++tensor) MR_TRY(PlanGroup(stage, tensor));
    manifest_.ranks = layout_.ranks();
    manifest_.attempt = std::string(16, '0');
    MR_TRY(manifest_.Check("simulated manifest"));
    save_.ranks = layout_.ranks();
    save_.tensors = manifest_.tensors.size();
    save_.slices = manifest_.slices.size();
    save_.manifest = manifest_.Serialize().size();
    // Requests besides those for files: check of the step, manifest, and the two listings of garbage collection.
    save_.requests += 4 + static_cast<std::uint64_t>(layout_.ranks()) / 1000;
    EstimateTimes();
    return save_;
  }

 private:
  /// The box of a weight that the tensor-parallel rank has.
  Result<Box> BoxOf(const Weight& weight, int tensor) const {
    if (weight.cut == Cut::kNone || layout_.tensor == 1) return Box{};
    const std::size_t dimension = weight.cut == Cut::kRows ? 0 : 1;
    if (weight.shape[dimension] % layout_.tensor != 0) {
      return Fail(Code::kInvalidArgument, "{} of {} does not divide by {}", weight.name, weight.shape[dimension],
                  layout_.tensor);
    }
    Box box{{0, 0}, {weight.shape.begin(), weight.shape.end()}};
    box.lengths[dimension] /= static_cast<std::uint64_t>(layout_.tensor);
    box.offsets[dimension] = box.lengths[dimension] * static_cast<std::uint64_t>(tensor);
    return box;
  }

  /// Adds the part of a state tensor that each rank of the group holds: the whole box, or its run of the flat buffer.
  void AddOptimizer(const Weight& weight, const Box& box, const std::string& name, std::uint64_t start,
                    std::uint64_t total, std::vector<std::vector<HeldSlice>>& held) const {
    const std::uint64_t elements = ElementsOf(box, weight.shape), ranks = held.size();
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      HeldSlice slice{name + weight.name, {DType::kF32, weight.shape}, box, 0, elements};
      if (layout_.sharded_optimizer) {
        const std::uint64_t first = std::clamp(total * rank / ranks, start, start + elements);
        const std::uint64_t last = std::clamp(total * (rank + 1) / ranks, start, start + elements);
        if (first == last) continue;
        slice.begin = first - start;
        slice.elements = last - first;
      }
      held[rank].push_back(std::move(slice));
    }
  }

  /// The data-parallel ranks of one stage and one shard hold the same weights.
  Status PlanGroup(int stage, int tensor) {
    std::vector<std::pair<const Weight*, Box>> mine;
    std::uint64_t total = 0;
    for (const Weight& weight : weights_) {
      // Whole weights are the same on all tensor-parallel ranks of the stage; their first group saves them.
      if (weight.stage != stage || (weight.cut == Cut::kNone && tensor != 0)) continue;
      mine.emplace_back(&weight, MR_TRY(BoxOf(weight, tensor)));
      total += ElementsOf(mine.back().second, weight.shape);
    }
    std::vector<std::vector<HeldSlice>> held(static_cast<std::size_t>(layout_.data));
    std::uint64_t start = 0;
    for (const auto& [weight, box] : mine) {
      const std::uint64_t elements = ElementsOf(box, weight->shape);
      for (auto& rank : held)
        rank.push_back({std::string(kModelGroup) + weight->name, {DType::kBF16, weight->shape}, box, 0, elements});
      for (const char* state : {"optimizer/exp_avg/", "optimizer/exp_avg_sq/", "optimizer/master/"})
        AddOptimizer(*weight, box, state, start, total, held);
      start += elements;
    }
    const auto shares = BalanceReplicas(held);
    for (std::size_t rank = 0; rank < held.size(); ++rank) AddFile(held[rank], shares[rank]);
    return {};
  }

  void AddFile(const std::vector<HeldSlice>& held, const std::vector<SliceShare>& shares) {
    Manifest part;
    FileMeta file{.chunk_bytes = system_.chunk_bytes};
    const std::string name = RankFile(std::string(16, '0'), static_cast<int>(manifest_.files.size()));
    for (const SliceShare& share : shares) {
      const HeldSlice& slice = held[share.slice];
      part.tensors.emplace(slice.name, slice.meta);
      part.slices.push_back({slice.name, slice.begin + share.begin, share.elements, name, file.size, slice.box});
      file.size += share.elements * DTypeBytes(slice.meta.dtype);
    }
    file.chunk_crc32c.resize((file.size + file.chunk_bytes - 1) / file.chunk_bytes, 0x5a5a5a5a);
    Count(file.size);
    Manifest same;
    same.files.emplace(name, file);
    save_.later_reports += same.Serialize().size();
    part.files = same.files;
    save_.first_reports += part.Serialize().size();
    manifest_.tensors.merge(part.tensors);
    std::ranges::move(part.slices, std::back_inserter(manifest_.slices));
    manifest_.files.emplace(name, std::move(file));
  }

  void Count(std::uint64_t size) {
    const std::uint64_t parts = (size + system_.part_bytes - 1) / system_.part_bytes;
    save_.requests += parts > 1 ? parts + 2 : parts;  // created and completed
    save_.least = manifest_.files.empty() ? size : std::min(save_.least, size);
    save_.most = std::max(save_.most, size);
    save_.bytes += size;
  }

  void EstimateTimes() {
    const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
    const double parts = std::ceil(number(save_.most) / number(system_.part_bytes));
    save_.copy_s = number(save_.most) / system_.copy_bandwidth;
    save_.upload_s =
        std::max({number(save_.most) / system_.rank_bandwidth, number(save_.bytes) / system_.store_bandwidth,
                  number(save_.requests) / system_.store_requests,
                  std::ceil(parts / system_.parallel_parts) * system_.request_s}) +
        2 * system_.request_s;
    const double hops = 3 * std::ceil(std::log2(std::max(save_.ranks, 2)));
    save_.agree_s = hops * system_.hop_s + number(save_.later_reports) / system_.leader_bandwidth + system_.request_s;
    save_.commit_s = number(save_.manifest) / system_.manifest_bandwidth +
                     number(save_.manifest) / system_.rank_bandwidth + system_.request_s;
  }

  const ScaleLayout layout_;
  const ScaleSystem system_;
  const std::vector<Weight> weights_;
  Manifest manifest_;
  ScaleSave save_;
};

}  // namespace

Result<ScaleSave> SimulateSave(const ScaleModel& model, const ScaleLayout& layout, const ScaleSystem& system) {
  if (layout.data < 1 || layout.tensor < 1 || layout.pipeline < 1 || layout.pipeline > model.layers)
    return Fail(Code::kInvalidArgument, "a layout of {} x {} x {} ranks", layout.data, layout.tensor, layout.pipeline);
  return Simulation(model, layout, system).Run();
}

}  // namespace millrace::checkpoint
