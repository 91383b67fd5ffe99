// NVIDIA's shards of BERT's pre-training data (DeepLearningExamples, create_pretraining_data.py with HDF5): samples
// with their masks, as six tables of an HDF5 file.
#pragma once

#include <memory>

#include "millrace/data/records/content.h"
#include "millrace/data/records/data_object.h"

namespace millrace::data {

/// Returns the content of a shard: samples as hdf5/stored_sample.h has them. Frames are consecutive rows. The object's
/// tables of places are read once and kept: 16 bytes for each stored chunk. A frame reads only its own chunks.
std::shared_ptr<const Content> MakeSampleShard(DataObject object);

}  // namespace millrace::data
