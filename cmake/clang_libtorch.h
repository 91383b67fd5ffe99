// Included first where clang compiles against libtorch. Headers of libtorch 1 destroy a std::vector of c10::IValue
// before that type is complete. Since C++20 the functions of std::vector are constexpr. clang instantiates constexpr
// functions where they are named, g++ at the end of the file. Here std::vector alone has the functions of C++17.
#pragma once

#include <torch/version.h>
#if TORCH_VERSION_MAJOR == 1
#include <memory>
#include <string>
#ifdef _GLIBCXX_VECTOR
#error "these headers of the standard library include <vector>"
#endif
#pragma push_macro("_GLIBCXX20_CONSTEXPR")
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR
#define __fill_a1 constexpr __fill_a1  // was declared so: <vector> defines it for bits
#include <vector>
#undef __fill_a1
#pragma pop_macro("_GLIBCXX20_CONSTEXPR")
#endif
