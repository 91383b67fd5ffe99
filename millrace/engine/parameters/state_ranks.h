// The groups of ranks over which a model's parameters are divided or repeated.
#pragma once

#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/parallel/tensor_ranks.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// The groups in which this rank exchanges parameters, gradients and sums over them. Borrows the groups. A group may be
/// null if it has one rank.
struct StateRanks {
  Collective* shard = nullptr;    ///< the mesh's shard axis: they divide each parameter group (Sharding)
  Collective* replica = nullptr;  ///< its replica axis: they have the same share, and see other samples
  TensorRanks tensor = {};        ///< its tensor axis: they divide layers
  /// Shard × tensor: the ranks that together hold the parameters of a pipeline stage once.
  Collective* stage = nullptr;
  /// Pipeline × shard × tensor: the ranks that together hold the model once.
  Collective* model = nullptr;
  /// The first and the last stage's rank, in this order, with the same coordinates otherwise, on these two ranks: they
  /// hold the same part of a tied embedding (NamedParameter::shared_by_stages).
  Collective* tied = nullptr;

  static int SizeOf(const Collective* group) { return group != nullptr ? group->size() : 1; }
  /// Returns whether this is the first of the tensor ranks that hold this rank's slice of the parameter.
  bool IsFirstHolder(const NamedParameter& parameter) const {
    return tensor.rank() % parameter.Holders(tensor.size()) == 0;
  }
  /// Returns whether this rank counts its part of the parameter in a sum over the model. Of the ranks that hold the
  /// same elements, one does.
  bool Counts(const NamedParameter& parameter) const {
    if (!IsFirstHolder(parameter)) return false;
    return !parameter.shared_by_stages || tied == nullptr || tied->rank() == 0;
  }
};

}  // namespace millrace::engine
