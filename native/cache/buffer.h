// Scratch memory, aligned for vectors. It only grows, and loses its contents when it does.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "../kernels/kernels.h"

namespace palimpsest {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() { release(); }

  // size: 64 bits, so that a product of sizes does not wrap on a machine of 32; what such a machine cannot address is
  // no memory there.
  void grow(uint64_t size) {
    if (size <= size_) return;
    if (size > SIZE_MAX / 2 / sizeof(T)) throw std::bad_alloc();
    T* bigger = static_cast<T*>(::operator new(static_cast<size_t>(size) * sizeof(T), kAlign));
    release();
    data_ = bigger;
    size_ = static_cast<size_t>(size);
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  static constexpr std::align_val_t kAlign{64};
  void release() {
    if (data_) ::operator delete(data_, kAlign);
  }
  T* data_ = nullptr;
  size_t size_ = 0;
};

inline Workspace workspaceIn(Buffer<uint8_t>& buffer) { return Workspace(buffer.data(), buffer.bytes()); }

}  // namespace palimpsest
