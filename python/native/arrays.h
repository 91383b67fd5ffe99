// Vectors as numpy arrays, without a copy.
#pragma once

#include <pybind11/numpy.h>

#include <utility>
#include <vector>

namespace millrace::python {

/// Returns an array that owns the values. An empty `shape` means one dimension. Passes strides explicitly, because
/// pybind11 before 2.12 computes them from a structure that numpy 2 has changed.
template <class T>
pybind11::array AdoptArray(std::vector<T> values, std::vector<pybind11::ssize_t> shape = {}) {
  auto* owned = new std::vector<T>(std::move(values));
  pybind11::capsule owner(owned, [](void* pointer) { delete static_cast<std::vector<T>*>(pointer); });
  if (shape.empty()) shape = {static_cast<pybind11::ssize_t>(owned->size())};
  std::vector<pybind11::ssize_t> strides(shape.size(), sizeof(T));
  for (std::size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
  return pybind11::array_t<T>(std::move(shape), std::move(strides), owned->data(), owner);
}

}  // namespace millrace::python
