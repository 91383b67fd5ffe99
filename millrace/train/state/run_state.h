// The state of a run that a checkpoint has, so that the run can resume with the same losses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/save_slice.h"
#include "millrace/data/loader_state.h"
#include "millrace/engine/models/model.h"
#include "millrace/engine/optim/optimizer.h"
#include "millrace/engine/parameters/tensor_slice.h"
#include "millrace/engine/quantized/quantization.h"
#include "millrace/train/compile/compile_cache.h"

namespace millrace::train {

/// The part of a tensor of the run that this rank owns: consecutive elements of its slice. The tensor's name in
/// checkpoints is "model/…", "adapter/…" or "optimizer/exp_avg/…".
struct StateTensor {
  std::string name;
  at::Tensor tensor;                      ///< [n]; a view into the model or the optimizer
  std::vector<std::int64_t> whole_shape;  ///< of the tensor that all ranks have together
  engine::TensorSlice slice = {};
  std::int64_t first = 0;  ///< the first of the elements in the flattened slice
  bool saves = true;       ///< this rank saves them; otherwise other ranks that hold the same do
};
/// The parameters that a run saves of a model: all of them, or the trained ones as an adapter of a model that stays as
/// it is.
enum class SavedParameters { kModel, kAdapter };
std::vector<StateTensor> StateTensors(engine::Model& model, engine::Optimizer& optimizer,
                                      SavedParameters kept = SavedParameters::kModel);

/// Returns the slices that a rank saves. If several ranks return the same elements, checkpoint::ShareReplicas divides
/// them. They borrow the tensors' memory, which may be a GPU's: checkpoint::SliceReader.
std::vector<checkpoint::SaveSlice> SlicesOf(const std::vector<StateTensor>& tensors);

/// The metadata of a checkpoint, beside its tensors (docs/formats/training-state.md).
struct RunState {
  std::uint64_t step = 0;
  std::string optimizer = "adamw";  ///< Optimizer::name(); checkpoints of older versions lack it and have AdamW's state
  std::int64_t optimizer_steps = 0;
  std::uint64_t seed = 0;
  data::LoaderState data;
  Json model_config;                    ///< Hugging Face's config.json
  Json generation_config;               ///< generation_config.json of the model that the run began with; null: none
  std::vector<std::string> transposed;  ///< weights that are stored as the transposes of Hugging Face's
  std::string tokenizer_url, tokenizer_fingerprint;
  Json adapter_config;           ///< PEFT's adapter_config.json; null: the run trains no adapter
  std::string base_fingerprint;  ///< of the adapted model's weights: engine::FrozenFingerprint, in hexadecimal digits
  std::optional<engine::Quantization> base_quantization;  ///< how those weights were kept; nothing: in full
  Json spikes;                                            ///< SpikeDetector::ToJson(); null: the run looked for none

  Json loss_scale;  ///< LossScale::ToJson(); null: the loss had no factor

  Json fp8;  ///< DelayedScales::ToJson(); null: the run had no delayed scaling

  /// How the steps were computed: "off", "on", or "auto" as in checkpoints that do not say it; options.h.
  std::string compile = "auto";
  std::optional<CompiledEntry> compiled;  ///< with "on"

  Json ToJson() const;
  static Result<RunState> FromJson(const Json& meta, std::string_view name);
};

/// Reads the tensors from a checkpoint of the same model, however its ranks divided them. Ranks that hold more than
/// they own then call engine::DataExchange::ShareValues(). Errors: kPreconditionFailed if shapes or types differ.
Status ReadState(checkpoint::Reader& reader, const std::vector<StateTensor>& tensors);

}  // namespace millrace::train
