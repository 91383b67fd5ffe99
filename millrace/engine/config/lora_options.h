// The options of LoRA (Hu et al. 2021). Words and defaults are those of PEFT's LoraConfig, unless said otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::engine {

/// The options of adapters: the linear layers that get one, and its kind. An adapter of a layer [out, in] is the
/// matrices A [rank, in] and B [out, rank]; the layer adds scale() · B·A·drop(x) to its output. A begins at random, B
/// at zero.
///
/// With `dora` (Liu et al. 2024), an adapter has a magnitude m [out], too. The layer multiplies with the matrix whose
/// row i is m_i · V_i / |V_i|, where V = W + scale() · B·A. m begins as the norms of the rows of W. The gradient takes
/// |V_i| as a constant.
struct LoraOptions {
  int rank = 8;
  double alpha = 8;
  double dropout = 0;   ///< probability of dropping an element of x
  bool rslora = false;  ///< scale by the root of the rank (Kalajdzievski 2023)
  bool dora = false;    ///< the norms of the rows are learnt by themselves
  /// Names of modules ("model.layers.0.self_attn.q_proj") or their ends ("q_proj"). "all-linear": all but the layers
  /// that make logits or scores. PEFT has other defaults for each model.
  std::vector<std::string> targets = {"all-linear"};
  /// Parameters of the model that are trained, too ("lm_head.weight"): those of PEFT's modules_to_save.
  std::vector<std::string> whole = {};

  /// Returns alpha/rank or, with rslora, alpha/sqrt(rank).
  double scale() const;
  bool operator==(const LoraOptions&) const = default;
};

/// The parameters of a module's adapter have the module's name and one of these, as in PEFT's files.
inline constexpr std::string_view kLoraDown = ".lora_A.weight", kLoraUp = ".lora_B.weight",
                                  kLoraMagnitude = ".lora_magnitude_vector";

/// Returns whether this is the name of an adapter's parameter.
bool IsOfAdapter(std::string_view parameter);

/// Returns whether `target` names the module: it is the module's name, or an end of it after a dot.
bool TargetMatches(std::string_view target, std::string_view module);

/// Errors: kInvalidArgument on values out of range, with `key`.
Status CheckLora(const LoraOptions& options, std::string_view key);

}  // namespace millrace::engine
