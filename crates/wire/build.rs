//! Generates the messages and the service. `protox` reads the .proto, so that a build needs no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/tidegate.proto");
    let files = protox::compile(["tidegate.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .btree_map(".")
        // The generated `ControlClient::connect(address)` would collide with our rpc of that name.
        .build_transport(false)
        .compile_fds(files)?;
    Ok(())
}
