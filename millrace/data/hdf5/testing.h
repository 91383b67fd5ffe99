// Writes small HDF5 files as h5py writes them by default: superblock 0, symbol tables, B-trees of version 1.
#pragma once

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"

namespace millrace::data::testing {

/// A table of integers and how it is to be stored.
struct Hdf5Table {
  std::string name;
  std::uint64_t rows = 0, columns = 1;
  int element_bytes = 4;
  bool one_dimension = false;
  std::uint64_t chunk_rows = 0, chunk_columns = 0;  ///< 0: stored in one piece
  bool deflate = true;
  std::vector<std::int64_t> values = {};  ///< [rows, columns]
};

/// Builds the bytes of a file. One thread.
class Hdf5Writer {
 public:
  std::string Write(const std::vector<Hdf5Table>& tables) {
    constexpr std::uint64_t kSuperblock = 96, kHeap = 512;
    bytes_ = std::string("\x89HDF\r\n\x1a\n", 8);
    Reserve(kSuperblock - 8);
    for (std::size_t at : {13, 14}) Put(at, 8, 1);
    Put(16, 4, 2);
    Put(18, 16, 2);
    Put(32, kNone, 8);
    Put(48, kNone, 8);
    const std::uint64_t root = Reserve(16 + 8 + 16), tree = Reserve(24 + 24), heap = Reserve(32),
                        names = Reserve(kHeap), symbols = Reserve(8 + 40 * tables.size());
    Put(64, root, 8);
    PutHeader(root, 1, 24);
    PutMessage(root + 16, 17, 16);
    Put(root + 24, tree, 8);
    Put(root + 32, heap, 8);
    PutText(tree, "TREE");
    Put(tree + 6, 1, 2);
    Put(tree + 32, symbols, 8);
    PutText(heap, "HEAP");
    Put(heap + 8, kHeap, 8);
    Put(heap + 24, names, 8);
    PutText(symbols, "SNOD");
    Put(symbols + 6, tables.size(), 2);
    std::uint64_t name = 8;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      PutText(names + name, tables[i].name);
      Put(symbols + 8 + 40 * i, name, 8);
      Put(symbols + 16 + 40 * i, AddTable(tables[i]), 8);
      name += tables[i].name.size() + 1;
    }
    Put(40, bytes_.size(), 8);
    return bytes_;
  }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  std::uint64_t Reserve(std::uint64_t count) {
    const std::uint64_t at = bytes_.size();
    bytes_.resize(at + (count + 7) / 8 * 8);
    return at;
  }
  void Put(std::uint64_t at, std::uint64_t value, int width) {
    for (int i = 0; i < width; ++i) bytes_[at + i] = static_cast<char>(value >> (8 * i));
  }
  void PutText(std::uint64_t at, std::string_view text) {
    std::ranges::copy(text, bytes_.begin() + static_cast<long>(at));
  }
  void PutHeader(std::uint64_t at, std::uint64_t messages, std::uint64_t size) {
    Put(at, 1, 1);
    Put(at + 2, messages, 2);
    Put(at + 4, 1, 4);
    Put(at + 8, size, 4);
  }
  /// Returns where the message's content begins.
  std::uint64_t PutMessage(std::uint64_t at, int type, std::uint64_t size) {
    Put(at, static_cast<std::uint64_t>(type), 2);
    Put(at + 2, size, 2);
    return at + 8;
  }

  std::uint64_t AddTable(const Hdf5Table& table) {
    constexpr std::uint64_t kShape = 24, kType = 16, kLayout = 32, kFilters = 24;
    const int dimensions = table.one_dimension ? 1 : 2;
    const bool chunked = table.chunk_rows > 0, filtered = chunked && table.deflate;
    const std::uint64_t size = 24 + kShape + kType + kLayout + (filtered ? 8 + kFilters : 0);
    const std::uint64_t header = Reserve(16 + size);
    PutHeader(header, filtered ? 4 : 3, size);
    std::uint64_t at = PutMessage(header + 16, 1, kShape);
    Put(at, 1, 1);
    Put(at + 1, static_cast<std::uint64_t>(dimensions), 1);
    Put(at + 8, table.rows, 8);
    if (dimensions == 2) Put(at + 16, table.columns, 8);
    at = PutMessage(at + kShape, 3, kType);
    Put(at, 0x10, 1);
    Put(at + 1, 8, 1);
    Put(at + 4, static_cast<std::uint64_t>(table.element_bytes), 4);
    Put(at + 10, 8 * static_cast<std::uint64_t>(table.element_bytes), 2);
    const std::uint64_t layout = PutMessage(at + kType, 8, kLayout);
    if (filtered) {
      at = PutMessage(layout + kLayout, 11, kFilters);
      Put(at, 1, 1);
      Put(at + 1, 1, 1);
      Put(at + 8, 1, 2);
      Put(at + 14, 1, 2);
      Put(at + 16, 6, 4);
    }
    Put(layout, 3, 1);
    if (!chunked) {
      const std::string elements = Elements(table, 0, table.rows, 0, table.columns);
      Put(layout + 1, 1, 1);
      Put(layout + 2, Append(elements), 8);
      Put(layout + 10, elements.size(), 8);
      return header;
    }
    Put(layout + 1, 2, 1);
    Put(layout + 2, static_cast<std::uint64_t>(dimensions) + 1, 1);
    Put(layout + 3, AddChunks(table, dimensions), 8);
    Put(layout + 11, table.chunk_rows, 4);
    if (dimensions == 2) Put(layout + 15, table.chunk_columns, 4);
    Put(layout + 11 + 4 * dimensions, static_cast<std::uint64_t>(table.element_bytes), 4);
    return header;
  }

  /// Returns the address of a B-tree with two levels.
  std::uint64_t AddChunks(const Hdf5Table& table, int dimensions) {
    struct Stored {
      std::uint64_t row, column, address, bytes;
    };
    std::vector<Stored> chunks;
    for (std::uint64_t row = 0; row < table.rows; row += table.chunk_rows) {
      for (std::uint64_t column = 0; column < table.columns; column += table.chunk_columns) {
        std::string elements = Elements(table, row, table.chunk_rows, column, table.chunk_columns);
        if (table.deflate) elements = Deflate(elements);
        chunks.push_back({row, column, Append(elements), elements.size()});
      }
    }
    const std::uint64_t key = 8 + 8 * (static_cast<std::uint64_t>(dimensions) + 1);
    constexpr std::size_t kLeafEntries = 3;
    std::vector<std::uint64_t> leaves;
    for (std::size_t first = 0; first < chunks.size(); first += kLeafEntries) {
      const std::size_t entries = std::min(kLeafEntries, chunks.size() - first);
      const std::uint64_t node = AddNode(0, entries, key);
      for (std::size_t i = 0; i < entries; ++i) {
        const Stored& chunk = chunks[first + i];
        const std::uint64_t at = node + 24 + i * (key + 8);
        Put(at, chunk.bytes, 4);
        Put(at + 8, chunk.row, 8);
        if (dimensions == 2) Put(at + 16, chunk.column, 8);
        Put(at + key, chunk.address, 8);
      }
      leaves.push_back(node);
    }
    const std::uint64_t root = AddNode(1, leaves.size(), key);
    for (std::size_t i = 0; i < leaves.size(); ++i) Put(root + 24 + i * (key + 8) + key, leaves[i], 8);
    return root;
  }

  std::uint64_t AddNode(std::uint64_t level, std::size_t entries, std::uint64_t key) {
    const std::uint64_t node = Reserve(24 + entries * (key + 8) + key);
    PutText(node, "TREE");
    Put(node + 4, 1, 1);
    Put(node + 5, level, 1);
    Put(node + 6, entries, 2);
    return node;
  }

  std::uint64_t Append(std::string_view content) {
    const std::uint64_t at = Reserve(content.size());
    PutText(at, content);
    return at;
  }

  /// Returns a rectangle of the table; what lies outside is 0.
  static std::string Elements(const Hdf5Table& table, std::uint64_t row, std::uint64_t rows, std::uint64_t column,
                              std::uint64_t columns) {
    std::string elements;
    for (std::uint64_t r = row; r < row + rows; ++r) {
      for (std::uint64_t c = column; c < column + columns; ++c) {
        const bool inside = r < table.rows && c < table.columns;
        const std::int64_t value = inside ? table.values[r * table.columns + c] : 0;
        elements.append(reinterpret_cast<const char*>(&value), static_cast<std::size_t>(table.element_bytes));
      }
    }
    return elements;
  }

  static std::string Deflate(const std::string& plain) {
    uLongf size = compressBound(plain.size());
    std::string packed(size, '\0');
    compress2(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(plain.data()),
              plain.size(), 6);
    packed.resize(size);
    return packed;
  }

  std::string bytes_;
};

}  // namespace millrace::data::testing
