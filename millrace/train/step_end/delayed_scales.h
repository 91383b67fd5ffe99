// Delayed scaling of FP8: the scales of a step follow from the largest values of the steps before it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/models/model.h"
#include "millrace/engine/ops/common/largest_values.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::train {

/// The amax values of a run. All ranks have the same: what a rank sees counts for all that have the layer. So a run may
/// go on with other ranks. Calls are collective where they say so; one thread at a time.
class DelayedScales {
 public:
  /// `layers`: the names of this rank's linear layers. Collective; blocks. Borrows the group.
  /// Errors: those of Collective.
  static Result<std::unique_ptr<DelayedScales>> Make(engine::Collective& group, const std::vector<std::string>& layers,
                                                     at::Device device);
  /// The values of this rank's layers, for StepKernels::largest.
  engine::ops::LargestValues& values() { return values_; }

  /// Ends the passes of a step that is learnt from. Waits for the device. Collective; blocks.
  /// Errors: those of Collective.
  Status EndStep();
  /// Forgets what a step saw that is left out.
  void Skip() { values_.TakeSeen(); }

  /// {"LAYER": [input, weight, gradient of the output], …} of all layers: the amax for the next step.
  Json ToJson() const;
  /// Layers that are absent in it have no amax: their next scales follow from the values of that step.
  /// Errors: kCorrupt.
  Status Restore(const Json& json);

 private:
  DelayedScales(engine::Collective& group, std::vector<std::string> all, std::vector<std::size_t> own,
                at::Device device);
  void SetAmax();

  engine::Collective& group_;
  const std::vector<std::string> all_;           ///< the names of the layers of all ranks
  const std::vector<std::size_t> own_;           ///< the places in `all_` of this rank's layers
  std::vector<engine::ops::OfFp8Tensors> amax_;  ///< of `all_`
  engine::ops::LargestValues values_;
};

/// Returns the names of a model's linear layers, in their order.
std::vector<std::string> LayerNames(const engine::Model& model);

}  // namespace millrace::train
