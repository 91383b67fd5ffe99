// Histograms of weights and gradients, over all ranks that divide them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/parameters/parameter_buffer.h"
#include "millrace/engine/parameters/state_ranks.h"
#include "millrace/metrics/float_histogram.h"

namespace millrace::train {

/// The histogram of one parameter, as a whole.
struct ParameterHistogram {
  std::string name;
  metrics::FloatHistogram weights, gradients;
};

/// Counts the trained parameters of a model. One thread at a time.
class ParameterHistograms {
 public:
  /// Sends all ranks the names of all parameters: a stage of a pipeline has only its own. Collective over `world`.
  /// REQUIRES: all references, and the groups of `ranks`, outlive this object. Errors: kUnavailable if a rank is lost.
  static Result<ParameterHistograms> Make(engine::Collective& world, const engine::ParameterBuffer& buffer,
                                          const engine::StateRanks& ranks);

  /// Returns the histograms of all parameters, by name. Gradients count times `scale`. Call it between the end of a
  /// step's passes and the update. Collective. Errors: kUnavailable if a rank is lost; kResourceExhausted.
  Result<std::vector<ParameterHistogram>> Collect(double scale) const;

 private:
  ParameterHistograms(engine::Collective& world, const engine::ParameterBuffer& buffer, const engine::StateRanks& ranks,
                      std::vector<std::string> names)
      : world_(&world), buffer_(&buffer), ranks_(ranks), names_(std::move(names)) {}
  Status CountOwned(std::vector<ParameterHistogram>& histograms, double scale) const;
  Status AddOverRanks(std::vector<ParameterHistogram>& histograms) const;

  // Constant after construction.
  engine::Collective* world_;
  const engine::ParameterBuffer* buffer_;
  engine::StateRanks ranks_;
  std::vector<std::string> names_;  ///< sorted
};

}  // namespace millrace::train
