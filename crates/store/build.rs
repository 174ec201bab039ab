//! Compiles the few calls of etcd that are used, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["etcd.proto"], ["proto"])?;
    // keys and values stay slices of the message they came in
    tonic_prost_build::configure().build_server(false).bytes(".").compile_fds(files)?;
    Ok(())
}
