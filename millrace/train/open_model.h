// The model of a run as its files describe it, before the layout divides it among the ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/config/model_shape.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/quantized/quantized_matrix.h"
#include "millrace/object/connection.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/train/layout.h"
#include "millrace/train/options.h"
#include "millrace/train/reporting/heartbeat.h"

namespace millrace::train {

struct OpenedModel {
  std::shared_ptr<const engine::ModelConfig> config;
  std::string config_name;                                    ///< where it is from, for messages
  Json stored_config;                                         ///< config.json of model.from; null: there is none
  Json generation_config;                                     ///< generation_config.json there; null: there is none
  std::optional<checkpoint::ModelSource> weights;             ///< nothing: the model begins at random
  std::optional<engine::LoraOptions> lora;                    ///< nothing: the whole model is trained
  std::optional<checkpoint::ModelSource> adapter;             ///< to start from; nothing: a new one, or none
  std::shared_ptr<const engine::QuantizedWeights> quantized;  ///< of the base; null: none
  plan::ModelShape shape;                                     ///< with marks of what is trained
};

/// Opens model.from, or takes model.config; opens lora.adapter; quantizes the base, if the options say so. Reads no
/// weights otherwise. All ranks open the same, though another checkpoint may be committed there meanwhile. Beats on
/// `heartbeat` where it takes long. Collective over `group`. Blocks.
/// Errors: kNotFound without a config.json or adapter_config.json; kInvalidArgument if the weights are quantized and
/// the run does not train adapters over them; those of reading.
Result<OpenedModel> OpenModel(object::Connection& connection, engine::Collective& group, const Options& options,
                              const tokenizer::Tokenizer& tokenizer, MemoryBudget& budget, Heartbeat& heartbeat,
                              Clock& clock);

/// Checks that the model can learn the objective from these tokens, in this layout. Errors: kInvalidArgument.
Status CheckModel(const OpenedModel& opened, const Options& options, const tokenizer::Tokenizer& tokenizer,
                  const RankLayout& layout);

/// Returns PEFT's adapter_config.json of the adapter that the run trains; null if it trains none.
Json AdapterConfig(const OpenedModel& opened, const Options& options);

}  // namespace millrace::train
