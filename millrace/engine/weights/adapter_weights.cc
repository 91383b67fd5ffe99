#include "millrace/engine/weights/adapter_weights.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/engine/config/peft_config.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/parameters/scalar_types.h"
#include "millrace/engine/weights/weight_names.h"

namespace millrace::engine {
namespace {

/// Requests in flight.
constexpr int kAdapterReads = 8;

/// A tensor of the adapter that is to be read into rows of an update's tensor.
struct AdapterTensor {
  std::string stored;  ///< its name in the checkpoint
  at::ScalarType type = at::kFloat;
  at::Tensor into;  ///< on the host
  Buffer bytes;
};

class AdapterReader {
 public:
  AdapterReader(checkpoint::Reader& reader, const Model& model, const LoraOptions& options)
      : reader_(reader), model_(model), options_(options), type_(model.buffer().dtype()) {}

  Result<std::shared_ptr<const AdapterWeights>> Read(const std::function<Status(std::uint64_t)>& reserve,
                                                     const object::Call& call) {
    for (std::size_t number = 0; number < model_.linear_layers().size(); ++number) MR_TRY(Plan(number));
    MR_TRY(CheckAllUsed(call));
    MR_TRY(reserve(bytes_));
    return CatchTorch("loading an adapter", [&] {
      auto weights = std::make_shared<AdapterWeights>();
      weights->layers.resize(model_.linear_layers().size());
      for (const PlannedLayer& planned : planned_) Allocate(planned, weights->layers[planned.number]);
      ThrowIfFailed(ReadTensors(call));
      for (const PlannedLayer& planned : planned_) Finish(planned, weights->layers[planned.number]);
      return std::shared_ptr<const AdapterWeights>(std::move(weights));
    });
  }

 private:
  using Module = LinearLayer::Module;
  /// The modules of a layer that the adapter changes.
  struct PlannedLayer {
    std::size_t number = 0;
    std::vector<Module> modules;
  };

  const LinearLayer& LayerOf(const PlannedLayer& planned) const { return model_.linear_layers()[planned.number]; }

  bool IsTarget(const Module& module, bool predicts) {
    if (options_.targets == std::vector<std::string>{"all-linear"}) return !predicts;
    bool named = false;
    for (const std::string& target : options_.targets) {
      if (!TargetMatches(target, module.name)) continue;
      found_targets_.insert(target);
      named = true;
    }
    return named;
  }

  /// Notes a tensor of the adapter, and what it takes in memory.
  Status Want(std::string name, const std::vector<std::int64_t>& shape) {
    const checkpoint::Manifest& manifest = reader_.manifest();
    const auto stored = FindAdapterWeight(manifest, name);
    if (!stored)
      return Fail(Code::kNotFound, "{} has no weight {}; copy or export the adapter again", reader_.name(), name);
    const checkpoint::TensorMeta& meta = manifest.tensors.at(*stored);
    if (meta.shape != shape) {
      return Fail(Code::kCorrupt, "{}: {} is [{}], and this model and the adapter's rank want [{}]", reader_.name(),
                  name, fmt::join(meta.shape, ", "), fmt::join(shape, ", "));
    }
    std::int64_t elements = 1;
    for (const std::int64_t extent : shape) elements *= extent;
    bytes_ += static_cast<std::uint64_t>(elements) * at::elementSize(type_);
    const at::ScalarType type = MR_TRY(ParseScalarType(checkpoint::DTypeName(meta.dtype)));
    tensors_.push_back({.stored = *stored, .type = type, .into = {}, .bytes = {}});
    used_.insert(*stored);
    return {};
  }

  Status Plan(std::size_t number) {
    const LinearLayer& layer = model_.linear_layers()[number];
    PlannedLayer planned{.number = number, .modules = {}};
    for (const Module& module : layer.modules) {
      if (IsTarget(module, layer.predicts)) planned.modules.push_back(module);
    }
    if (planned.modules.empty()) return {};
    for (const Module& module : planned.modules) {
      MR_TRY(Want(module.name + std::string(kLoraDown), {options_.rank, layer.in_features}));
      MR_TRY(Want(module.name + std::string(kLoraUp), {module.outputs, options_.rank}));
      if (options_.dora) MR_TRY(Want(module.name + std::string(kLoraMagnitude), {module.outputs}));
    }
    if (options_.dora) bytes_ += static_cast<std::uint64_t>(OutputsOf(layer)) * sizeof(float);
    planned_.push_back(std::move(planned));
    return {};
  }

  static std::int64_t OutputsOf(const LinearLayer& layer) {
    return layer.modules.back().first_output + layer.modules.back().outputs;
  }

  /// PEFT puts a head's own weight and bias beside the head's adapter. Checks that they are the model's.
  Status CheckBase(const std::string& stored, const object::Call& call) const {
    const std::size_t at = stored.find(kPeftBase);
    const std::string part = stored.substr(at + kPeftBase.size());
    const auto is_head = [&](const LinearLayer& layer) {
      return layer.modules.size() == 1 && stored.substr(0, at).ends_with("." + layer.modules[0].name);
    };
    const auto head = std::ranges::find_if(model_.linear_layers(), is_head);
    const checkpoint::TensorMeta& meta = reader_.manifest().tensors.at(stored);
    at::Tensor kept;
    if (head != model_.linear_layers().end() && part == "weight" && !head->codes) kept = head->weight->value;
    if (head != model_.linear_layers().end() && part == "bias") {
      const auto& parameters = model_.buffer().parameters();
      const auto bias = std::ranges::find(parameters, head->modules[0].name + ".bias", &NamedParameter::name);
      if (bias != parameters.end()) kept = bias->tensor;
    }
    if (kept.defined() && at::IntArrayRef(meta.shape) == kept.sizes()) {
      const at::ScalarType type = MR_TRY(ParseScalarType(checkpoint::DTypeName(meta.dtype)));
      Buffer bytes(meta.bytes());
      MR_TRY(reader_.Read(stored, 0, bytes.span(), call));
      const at::Tensor theirs = at::empty(meta.shape, type), own = kept.detach().cpu();
      MR_TRY(CopyInto(theirs, type, bytes));
      // Either may be the other, rounded.
      if (own.to(type).equal(theirs) || theirs.to(type_).equal(own)) return {};
    }
    return Fail(Code::kUnsupported,
                "{} has {}, which is not the weight of the shared model; such an adapter is served alone",
                reader_.name(), stored.substr(stored.find('/') + 1));
  }

  Status CheckAllUsed(const object::Call& call) const {
    for (const std::string& target : options_.targets) {
      if (target != "all-linear" && !found_targets_.contains(target)) {
        return Fail(
            Code::kInvalidArgument,
            "{} adapts \"{}\", and no linear layer of this model is called so; use the model that it was trained on",
            reader_.name(), target);
      }
    }
    for (const auto& [stored, meta] : reader_.manifest().tensors) {
      const bool of_adapter =
          stored.starts_with(checkpoint::kAdapterGroup) || stored.starts_with(checkpoint::kModelGroup);
      if (!of_adapter || used_.contains(stored)) continue;
      if (stored.contains(kPeftBase)) {
        MR_TRY(CheckBase(stored, call));
        continue;
      }
      return Fail(Code::kUnsupported,
                  "{} has {}, which does not adapt a linear layer of this model; adapters whose modules were trained "
                  "whole are served alone, not over a shared model",
                  reader_.name(), stored.substr(stored.find('/') + 1));
    }
    return {};
  }

  /// Allocates a layer's update on the host, and says where its tensors come to, in the order of Plan().
  void Allocate(const PlannedLayer& planned, LayerUpdate& layer) {
    const std::int64_t rank = options_.rank, count = static_cast<std::int64_t>(planned.modules.size());
    layer.update.scale = options_.scale();
    layer.update.down.value = at::empty({count * rank, LayerOf(planned).in_features}, type_);
    for (std::int64_t i = 0; i < count; ++i) {
      const Module& module = planned.modules[static_cast<std::size_t>(i)];
      tensors_[allocated_++].into = layer.update.down.value.narrow(0, i * rank, rank);
      ops::LowRankUpdate::Module update{.first_output = module.first_output};
      update.up.value = at::empty({module.outputs, rank}, type_);
      tensors_[allocated_++].into = update.up.value;
      if (options_.dora) {
        update.magnitude.value = at::empty({module.outputs}, type_);
        tensors_[allocated_++].into = update.magnitude.value;
      }
      layer.update.modules.push_back(std::move(update));
    }
  }

  Status ReadTensors(const object::Call& call) {
    std::vector<checkpoint::Reader::TensorRange> wanted;
    for (AdapterTensor& tensor : tensors_) {
      MutableByteSpan into;
      if (tensor.type == type_) {
        into = BytesOf(tensor.into);
      } else {
        tensor.bytes = Buffer(static_cast<std::size_t>(tensor.into.numel()) * at::elementSize(tensor.type));
        into = tensor.bytes.span();
      }
      wanted.push_back({.tensor = tensor.stored, .into = into});
    }
    MR_TRY(reader_.ReadMany(wanted, kAdapterReads, call));
    for (const AdapterTensor& tensor : tensors_) {
      if (tensor.type != type_) MR_TRY(CopyInto(tensor.into, tensor.type, tensor.bytes));
      if (!tensor.into.isfinite().all().item<bool>()) {
        return Fail(Code::kCorrupt, "{}: {} has elements that are infinite or not numbers", reader_.name(),
                    tensor.stored.substr(tensor.stored.find('/') + 1));
      }
    }
    return {};
  }

  /// Moves a layer's update to the model's device, and computes what its magnitudes come to.
  void Finish(const PlannedLayer& planned, LayerUpdate& layer) const {
    const at::Device device = model_.buffer().device();
    layer.update.down.value = layer.update.down.value.to(device);
    for (ops::LowRankUpdate::Module& module : layer.update.modules) {
      module.up.value = module.up.value.to(device);
      if (options_.dora) module.magnitude.value = module.magnitude.value.to(device);
    }
    if (!options_.dora) return;
    const LinearLayer& adapted = LayerOf(planned);
    const at::Tensor norms =
        ops::LinearPass({.matrix = *adapted.weight, .update = layer.update, .codes = adapted.codes}).RowNorms();
    layer.factors = at::ones_like(norms);
    for (const ops::LowRankUpdate::Module& module : layer.update.modules) {
      const auto part = [&](const at::Tensor& all) { return all.narrow(0, module.first_output, module.outputs()); };
      part(layer.factors).copy_(module.magnitude.value.to(at::kFloat) / part(norms));
    }
  }

  checkpoint::Reader& reader_;
  const Model& model_;
  const LoraOptions& options_;
  const at::ScalarType type_;
  std::vector<PlannedLayer> planned_;
  std::vector<AdapterTensor> tensors_;
  std::size_t allocated_ = 0;  ///< of tensors_
  std::set<std::string> found_targets_, used_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

Result<std::shared_ptr<const AdapterWeights>> ReadAdapterWeights(
    checkpoint::Reader& reader, const Model& model, const LoraOptions& options,
    const std::function<Status(std::uint64_t bytes)>& reserve, const object::Call& call) {
  return AdapterReader(reader, model, options).Read(reserve, call);
}

}  // namespace millrace::engine
