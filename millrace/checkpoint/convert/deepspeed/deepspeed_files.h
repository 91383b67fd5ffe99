// The files of a DeepSpeed checkpoint: what their pickles say, and where the bytes of their tensors are.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/deepspeed/zero_layout.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/format/tensor_meta.h"
#include "millrace/object/store.h"

namespace millrace::checkpoint {

/// A tensor of a file, and the place of its bytes.
struct PlacedTensor {
  TensorMeta meta;
  std::string file;  ///< key of ImportSource::files
  std::uint64_t offset = 0;
  std::vector<std::int64_t> strides;  ///< in elements; empty: C order without gaps
};

/// A file *_model_states.pt.
struct DeepSpeedModel {
  std::vector<ZeroGroup> groups;                            ///< param_shapes; empty if ZeRO was off
  ZeroGroup frozen;                                         ///< frozen_param_shapes
  std::map<std::string, PlacedTensor> frozen_fragments;     ///< of this rank, by parameter
  std::map<std::string, PlacedTensor> module;               ///< module.state_dict()
  std::set<std::string> buffers;                            ///< names in `module`
  std::vector<std::pair<std::string, std::string>> shared;  ///< a second name of a parameter, and the first one
  std::optional<std::uint64_t> step;                        ///< global_steps
  std::uint64_t model_parallel = 1;                         ///< mp_world_size
};

/// A file *_optim_states.pt.
struct DeepSpeedOptimizer {
  int stage = 0;
  std::uint64_t ranks = 0;                                  ///< partition_count
  std::vector<PlacedTensor> weights;                        ///< flat tensors, one-dimensional and in order
  std::map<std::string, std::vector<PlacedTensor>> states;  ///< "exp_avg" → flat tensors
  std::optional<double> steps;                              ///< of the optimizer
};

/// Read the file source.files[`file`]. Runs nothing of a pickle. Adds the checksums of the tensors' storages to
/// `source`. Blocks.
/// Errors: kCorrupt if the file is damaged; kUnsupported if it is not a ZeRO checkpoint's.
Result<DeepSpeedModel> ReadDeepSpeedModel(ImportSource& source, const std::string& file, const object::Call& call);
Result<DeepSpeedOptimizer> ReadDeepSpeedOptimizer(ImportSource& source, const std::string& file,
                                                  const object::Call& call);

}  // namespace millrace::checkpoint
