// A slice of a tensor that a rank saves: the input of Writer::Save.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/error.h"
#include "millrace/checkpoint/format/box.h"
#include "millrace/checkpoint/format/tensor_meta.h"

namespace millrace::checkpoint {

/// Consecutive elements, in C order, of a box of a tensor. Borrows the bytes.
struct SaveSlice {
  std::string name;         ///< of the tensor, with its group in front: "model/…"
  TensorMeta meta;          ///< of the whole tensor
  std::uint64_t begin = 0;  ///< the first element, counted within the box
  ByteSpan bytes;           ///< borrowed until the save has copied it
  Box box = {};             ///< of the tensor; by default all of it
};

/// Copies bytes of slices whose memory this process cannot read: that of a GPU. `to` is as long as `from`. Called by
/// several threads at once.
using SliceReader = std::function<Status(MutableByteSpan to, ByteSpan from)>;

}  // namespace millrace::checkpoint
