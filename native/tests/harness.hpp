// Small programs, a stand-in for Python, and values for them.
#pragma once

#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "error.hpp"
#include "interpreter.hpp"
#include "tensor.hpp"

namespace tierup::test {

// A host object that counts itself, so that tests see when it is given back.
class Token final : public HostObject {
 public:
  explicit Token(int& alive) : alive_(alive) { ++alive_; }
  ~Token() override { --alive_; }

 private:
  int& alive_;
};

class FakeHost final : public Host {
 public:
  using Callout = std::function<void(std::span<Object* const>, std::span<Value* const>)>;

  explicit FakeHost(std::vector<Callout> callouts = {}) : callouts_(std::move(callouts)) {}

  void call_out(int32_t callout, std::span<Object* const> ins, std::span<Value* const> outs) override {
    callouts_[static_cast<size_t>(callout)](ins, outs);
  }
  void step_aside() override { ++stepped_aside; }
  void take_turns() override { ++turns; }

  int stepped_aside = 0;
  int turns = 0;

 private:
  std::vector<Callout> callouts_;
};

template <typename T>
Ref<Tensor> tensor(int32_t dtype, std::initializer_list<int64_t> shape, const std::vector<T>& items) {
  Ref<Tensor> made = make_dense(dtype, std::vector<int64_t>(shape));
  if (!items.empty()) std::memcpy(made->data, items.data(), items.size() * sizeof(T));
  return made;
}

inline Ref<Tensor> int64s(std::initializer_list<int64_t> shape, const std::vector<int64_t>& items) {
  return tensor<int64_t>(kI64, shape, items);
}

inline Ref<Tensor> floats(std::initializer_list<int64_t> shape, const std::vector<float>& items) {
  return tensor<float>(kF32, shape, items);
}

inline Ref<Tensor> boolean(bool truth) { return tensor<uint8_t>(kBool, {}, {truth}); }

template <typename T>
std::vector<T> items(const Value& value) {
  const Ref<Tensor> dense = copy_dense(*as_tensor(value));
  std::vector<T> result(static_cast<size_t>(count_elements(dense->shape())));
  if (!result.empty()) std::memcpy(result.data(), dense->data, result.size() * sizeof(T));
  return result;
}

inline std::vector<int64_t> shape(const Value& value) {
  return {as_tensor(value)->shape().begin(), as_tensor(value)->shape().end()};
}

// All of a program in one place; the fields have workable defaults.
struct Script {
  std::vector<FunctionText> functions;
  std::vector<FakeHost::Callout> callouts = {};
  std::vector<Value> constants = {};
  std::vector<KernelFn> kernels = {};

  Program build() const {
    return build_program(functions, static_cast<int64_t>(callouts.size()), constants,
                         static_cast<int64_t>(kernels.size()));
  }

  std::vector<Value> run(std::vector<Value> inputs) const {
    CallState state;
    return run(std::move(inputs), state);
  }

  std::vector<Value> run(std::vector<Value> inputs, CallState& state) const {
    const Program program = build();
    SlotTable slots(kernels.size());
    for (size_t i = 0; i < kernels.size(); ++i) slots[i].kernel = kernels[i];
    FakeHost host(callouts);
    std::vector<Value> outputs(program.functions[0].outputs.size());
    tierup::run({program, slots, pool(), host, state}, inputs, outputs);
    return outputs;
  }
};

}  // namespace tierup::test
