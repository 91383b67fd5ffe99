// The layout of parameters in the files of DeepSpeed's ZeRO optimizers. Every rank has a part of the flattened
// parameters, in one flat tensor for each group. The source is deepspeed/utils/zero_to_fp32.py. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::checkpoint {

/// A parameter as param_shapes lists it.
struct ZeroParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::uint64_t elements = 0;  ///< the product of the shape
};
using ZeroGroup = std::vector<ZeroParameter>;  ///< in the order of the flat tensor

/// A run of a parameter's elements in a flat tensor. All numbers count elements.
struct ZeroRun {
  std::size_t group = 0, parameter = 0;   ///< indexes of the parameter
  std::uint64_t begin = 0, elements = 0;  ///< of the parameter, in C order
  std::size_t rank = 0, flat = 0;         ///< which rank, and which of its flat tensors
  std::uint64_t offset = 0;               ///< in that flat tensor
};

/// The elements of every flat tensor: by rank, then by flat tensor.
using FlatSizes = std::vector<std::vector<std::uint64_t>>;

/// Returns the runs of stages 1 and 2: the flat tensors of all ranks, one after the other, are the group's parameters,
/// and padding of less than twice the number of ranks. There is one flat tensor for each group.
/// Errors: kCorrupt if the sizes do not fit the parameters.
Result<std::vector<ZeroRun>> RunsOfStage2(const std::vector<ZeroGroup>& groups, const FlatSizes& sizes);

/// Returns the runs of stage 3: every rank has an equal share of each parameter, the last ones with padding. A rank's
/// flat tensors, one after the other, are its shares in order. A share may reach from one flat tensor into the next.
/// Errors: kCorrupt if the sizes do not fit the parameters.
Result<std::vector<ZeroRun>> RunsOfStage3(const std::vector<ZeroGroup>& groups, const FlatSizes& sizes);

}  // namespace millrace::checkpoint
