#include "millrace/train/state/run_state.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "millrace/checkpoint/format/manifest.h"
#include "millrace/data/loader_state_json.h"
#include "millrace/engine/config/peft_config.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/parameters/scalar_types.h"

namespace millrace::train {
namespace {

Result<checkpoint::TensorMeta> MetaOf(const StateTensor& state) {
  checkpoint::TensorMeta meta;
  meta.dtype = MR_TRY(checkpoint::ParseDType(engine::ScalarTypeName(state.tensor.scalar_type())));
  meta.shape = state.whole_shape;
  return meta;
}

/// Returns the rank's slice of the whole tensor, of which it owns some consecutive elements.
checkpoint::Box BoxOf(const StateTensor& state) {
  if (state.slice.whole()) return {};
  const std::vector<std::int64_t> lengths = state.slice.ShapeOf(state.whole_shape);
  checkpoint::Box box{.offsets = std::vector<std::uint64_t>(lengths.size()),
                      .lengths = {lengths.begin(), lengths.end()}};
  box.offsets[state.slice.dim] = static_cast<std::uint64_t>(state.slice.begin);
  return box;
}

/// The checkpoint's description of a tensor that the model has.
Result<const checkpoint::TensorMeta*> FindTensor(const checkpoint::Reader& reader, const StateTensor& state) {
  const auto found = reader.manifest().tensors.find(state.name);
  if (found == reader.manifest().tensors.end()) {
    return Fail(
        Code::kPreconditionFailed,
        "{} has no tensor {}: another model, other options of train.optimizer, or a parameter that train.freeze "
        "named before; use another checkpoint.url",
        reader.name(), state.name);
  }
  if (found->second.shape != state.whole_shape) {
    return Fail(Code::kPreconditionFailed,
                "{} is of another model: {} has the shape [{}], this run's has [{}]; use another checkpoint.url",
                reader.name(), state.name, fmt::join(found->second.shape, ", "), fmt::join(state.whole_shape, ", "));
  }
  return &found->second;
}

/// What a GPU's tensors are read through at a time.
constexpr std::int64_t kHostBytes = 256 * kMiB;

/// Reads tensors of a checkpoint: those on the CPU in place and all at once, those on a GPU in parts through the host.
class StateReads {
 public:
  explicit StateReads(checkpoint::Reader& reader) : reader_(reader) {}

  Status Add(const StateTensor& state) {
    if (state.tensor.device().is_cpu()) {
      wanted_.push_back(RangeOf(state, state.first, engine::BytesOf(state.tensor)));
      return {};
    }
    const auto most = kHostBytes / static_cast<std::int64_t>(state.tensor.element_size());
    for (std::int64_t first = 0; first < state.tensor.numel(); first += most) {
      const at::Tensor part = state.tensor.narrow(0, first, std::min(most, state.tensor.numel() - first));
      const auto bytes = static_cast<std::int64_t>(part.nbytes());
      if (host_bytes_ + bytes > kHostBytes) MR_TRY(Run());
      host_bytes_ += bytes;
      Part& staged = parts_.emplace_back(Part{part, at::empty(part.sizes(), part.scalar_type())});
      wanted_.push_back(RangeOf(state, state.first + first, engine::BytesOf(staged.host)));
    }
    return {};
  }
  Status Run() {
    MR_TRY(reader_.ReadMany(wanted_));
    for (const Part& part : parts_) {
      MR_TRY(engine::CatchTorch("copying to the GPU", [&] {
        const at::NoGradGuard no_grad;
        part.into.copy_(part.host);
      }));
    }
    wanted_.clear();
    parts_.clear();
    host_bytes_ = 0;
    return {};
  }

 private:
  struct Part {
    at::Tensor into, host;
  };
  static checkpoint::Reader::TensorRange RangeOf(const StateTensor& state, std::int64_t first, MutableByteSpan into) {
    return {.tensor = state.name, .begin = static_cast<std::uint64_t>(first), .into = into, .box = BoxOf(state)};
  }

  checkpoint::Reader& reader_;
  std::vector<checkpoint::Reader::TensorRange> wanted_;
  std::vector<Part> parts_;
  std::int64_t host_bytes_ = 0;  ///< of parts_
};

}  // namespace

std::vector<StateTensor> StateTensors(engine::Model& model, engine::Optimizer& optimizer, SavedParameters kept) {
  const engine::ParameterBuffer& buffer = model.buffer();
  std::vector<StateTensor> tensors;
  const auto add = [&](std::string name, const at::Tensor& tensor, const engine::OwnedPiece& piece) {
    const engine::NamedParameter& parameter = buffer.parameters()[piece.parameter];
    // Tensor ranks that hold a parameter alike may own different parts of it, because other parameters of its group
    // have different sizes on them.
    const bool is_first = model.ranks().rank() % parameter.Holders(model.ranks().size()) == 0;
    const bool saves = !buffer.sharding().divides_state() || is_first;
    tensors.push_back({std::move(name), tensor, parameter.whole_shape, parameter.slice, piece.first, saves});
  };
  for (const engine::OwnedPiece& piece : buffer.owned_pieces()) {
    const std::string& name = buffer.parameters()[piece.parameter].name;
    if (kept == SavedParameters::kModel) {
      add(std::string(checkpoint::kModelGroup) + name, piece.values, piece);
    } else if (piece.trainable) {
      add(fmt::format("{}{}{}", checkpoint::kAdapterGroup, engine::kPeftPrefix, name), piece.values, piece);
    }
  }
  for (const engine::NamedState& state : optimizer.State()) {
    add(std::string(checkpoint::kOptimizerGroup) + state.name, state.tensor, *state.piece);
  }
  return tensors;
}

std::vector<checkpoint::SaveSlice> SlicesOf(const std::vector<StateTensor>& tensors) {
  std::vector<checkpoint::SaveSlice> slices;
  for (const StateTensor& state : tensors) {
    if (!state.saves) continue;
    slices.push_back({.name = state.name,
                      .meta = MetaOf(state).value(),
                      .begin = static_cast<std::uint64_t>(state.first),
                      .bytes = {static_cast<const std::byte*>(state.tensor.data_ptr()), state.tensor.nbytes()},
                      .box = BoxOf(state)});
  }
  return slices;
}

Json RunState::ToJson() const {
  Json json = {
      {std::string(checkpoint::kMetaModelConfig), model_config},
      {"tokenizer", {{"url", tokenizer_url}, {"fingerprint", tokenizer_fingerprint}}},
      {"train", {{"step", step}, {"optimizer", optimizer}, {"optimizer_steps", optimizer_steps}, {"seed", seed}}},
      {"data", data::LoaderStateToJson(data)}};
  if (!generation_config.is_null()) json[std::string(checkpoint::kMetaGenerationConfig)] = generation_config;
  if (!spikes.is_null()) json["train"]["spikes"] = spikes;
  if (!loss_scale.is_null()) json["train"]["loss_scale"] = loss_scale;
  if (!fp8.is_null()) json["train"]["fp8"] = fp8;
  if (compile != "auto") json["train"]["compile"] = compile;
  if (compiled) json["train"]["compiled"] = compiled->ToJson();
  if (!adapter_config.is_null()) {
    json[std::string(checkpoint::kMetaAdapterConfig)] = adapter_config;
    json["train"]["base_fingerprint"] = base_fingerprint;
    if (base_quantization) json["train"]["base_quantization"] = QuantizationName(*base_quantization);
  }
  if (!transposed.empty()) json[std::string(checkpoint::kMetaTransposed)] = transposed;
  return json;
}

Result<RunState> RunState::FromJson(const Json& meta, std::string_view name) {
  const auto member = [&](std::string_view key) -> Result<const Json*> {
    const Json* found = JsonFind(meta, key);
    if (found == nullptr) {
      return Fail(
          Code::kPreconditionFailed,
          "{} was not made by a training run: no {}; resume from a checkpoint that a run saved, or start without", name,
          key);
    }
    return found;
  };
  RunState state;
  state.model_config = *MR_TRY(member(checkpoint::kMetaModelConfig));
  if (const Json* generation = JsonFind(meta, checkpoint::kMetaGenerationConfig); generation != nullptr) {
    state.generation_config = *generation;
  }
  const Json& train = *MR_TRY(member("train"));
  state.step = MR_TRY(JsonUint(train, "step"));
  if (JsonFind(train, "optimizer") != nullptr) state.optimizer = MR_TRY(JsonString(train, "optimizer"));
  state.optimizer_steps = MR_TRY(JsonInt(train, "optimizer_steps"));
  state.seed = MR_TRY(JsonUint(train, "seed"));
  if (const Json* spikes = JsonFind(train, "spikes"); spikes != nullptr) state.spikes = *spikes;
  if (const Json* scale = JsonFind(train, "loss_scale"); scale != nullptr) state.loss_scale = *scale;
  if (const Json* fp8 = JsonFind(train, "fp8"); fp8 != nullptr) state.fp8 = *fp8;
  if (JsonFind(train, "compile") != nullptr) state.compile = MR_TRY(JsonString(train, "compile"));
  if (const Json* compiled = JsonFind(train, "compiled"); compiled != nullptr) {
    state.compiled = MR_TRY(CompiledEntry::FromJson(*compiled, fmt::format("the compiled step in {}", name)));
  }
  if (const Json* adapter = JsonFind(meta, checkpoint::kMetaAdapterConfig); adapter != nullptr) {
    state.adapter_config = *adapter;
    state.base_fingerprint = MR_TRY(JsonString(train, "base_fingerprint"));
    state.base_quantization = engine::ParseQuantization(JsonString(train, "base_quantization").value_or(""));
  }
  state.data = MR_TRY(data::LoaderStateFromJson(*MR_TRY(member("data"))));
  const Json& tokenizer = *MR_TRY(member("tokenizer"));
  state.tokenizer_url = MR_TRY(JsonString(tokenizer, "url"));
  state.tokenizer_fingerprint = MR_TRY(JsonString(tokenizer, "fingerprint"));
  return state;
}

Status ReadState(checkpoint::Reader& reader, const std::vector<StateTensor>& tensors) {
  StateReads reads(reader);
  for (const StateTensor& state : tensors) {
    const auto* meta = MR_TRY(FindTensor(reader, state));
    if (checkpoint::DTypeName(meta->dtype) != engine::ScalarTypeName(state.tensor.scalar_type())) {
      const bool is_model = !state.name.starts_with(checkpoint::kOptimizerGroup);
      return Fail(Code::kPreconditionFailed, "{}: {} is {}, this run keeps it in {}; keep {} as it was", reader.name(),
                  state.name, checkpoint::DTypeName(meta->dtype), engine::ScalarTypeName(state.tensor.scalar_type()),
                  is_model ? "train.precision" : "train.optimizer.moments");
    }
    MR_TRY(reads.Add(state));
  }
  return reads.Run();
}

}  // namespace millrace::train
