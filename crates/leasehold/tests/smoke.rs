use std::time::Duration;
#[tokio::test]
async fn smoke() {
    let url = std::env::var("U").unwrap_or("redis://127.0.0.1:7999".into());
    let client = leasehold::Client::connect(&url).await.unwrap();
    let lock = client.lock("x");
    let g = lock.acquire().await.unwrap();
    println!("{:?}", lock.inspect().await.unwrap());
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.try_acquire_for(Duration::from_millis(100)).await.unwrap().is_none());
    let l2 = lock.clone();
    let h = tokio::spawn(async move { let t = std::time::Instant::now(); let g = l2.poll_cap(Duration::from_secs(3600)).acquire().await.unwrap(); println!("{:?}", t.elapsed()); g.release().await.unwrap(); });
    tokio::time::sleep(Duration::from_millis(200)).await;
    g.release().await.unwrap();
    h.await.unwrap();
    let t = std::time::Instant::now();
    for _ in 0..2000 { lock.acquire().await.unwrap().release().await.unwrap(); }
    println!("pair {:?}", t.elapsed()/2000);
    drop(lock.acquire().await.unwrap());
    client.close().await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    println!("{:?}", client.activity());
}
#[tokio::test]
async fn run_can_be_spawned() {
    let client = leasehold::Client::embedded();
    let lock = client.lock("x");
    tokio::spawn(async move { lock.run(async |g| { tokio::task::yield_now().await; g.is_held() }).await.unwrap() }).await.unwrap();
}
